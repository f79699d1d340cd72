"""The papers' experiments, one runnable module each: ``python -m experiments.NAME --help``."""
