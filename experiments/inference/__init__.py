"""Experiments on what a third party does with a release: intervals and tests."""
