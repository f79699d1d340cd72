"""The experiments, one folder or module for each: ``python -m experiments.NAME --help``.

An experiment is a module with a configuration (``experiments.common.config.Config``), a function that computes a
result, and a call of ``experiments.common.program.run_main``. ``experiments.security`` is the shortest example.
Experiments import ``experiments.common`` and modules of their own folder.
"""
