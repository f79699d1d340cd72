"""Attacks on the releases, and on how cells become codes."""
