"""Runs the cases of a configuration."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import jax

from experiments.benchmark.cases import CASES, DEFAULT_PARTS, Parts
from experiments.benchmark.config import BenchmarkConfig
from experiments.benchmark.machine import copy_bandwidth, is_accelerator
from experiments.benchmark.targets import FULL_PAIRS
from experiments.benchmark.task import Task
from experiments.benchmark.timing import DEFAULT_RULES, Rules, measure
from experiments.common.processes import peak_memory
from experiments.common.progress import Stages
from experiments.common.results import check_output_dir, environment


def default_num_rows() -> int:
    """N if the configuration does not say."""
    return 1_000_000 if is_accelerator() else 100_000


def default_peer_seconds() -> int:
    """Seconds that a peer may take if the configuration does not say."""
    return 2 if is_accelerator() else 60


def _is_wanted(task: Task, config: BenchmarkConfig) -> bool:
    """Whether the rows of the task are where the configuration wants them. On a CPU there is one place only."""
    if not (is_accelerator() and task.pairs and "N" in task.sizes):
        return True
    return ("device" if task.rows_on_device else "host") in config.rows


def run(
    config: BenchmarkConfig,
    keep: Callable[[dict[str, Any]], None] = lambda result: None,
    *,
    parts: Parts = DEFAULT_PARTS,
    rules: Rules = DEFAULT_RULES,
) -> dict[str, Any]:
    """Runs the cases: the result, with one entry of "records" per task (see :func:`measure`).

    Args:
      config: the configuration.
      keep: called with the result so far after each task.
      parts: what tasks are made of.
      rules: how contenders are timed.

    Raises:
      InputError: if the configuration is invalid. It is raised before long work.
      WrongResultError: see :func:`measure`.
    """
    num_rows = default_num_rows() if config.num_rows is None else config.num_rows
    peer_seconds = default_peer_seconds() if config.peer_seconds is None else config.peer_seconds
    config = dataclasses.replace(config, num_rows=num_rows, peer_seconds=peer_seconds)
    config.validate()
    check_output_dir(config.output_dir)
    load = os.getloadavg()[0]
    machine = environment() | {"device_kind": jax.devices()[0].device_kind}
    bandwidth = copy_bandwidth(2**30 if is_accelerator() else 2**27)
    stages, records, skipped = Stages(), [], []
    kind = "cpu" if not is_accelerator() else machine["device_kind"]
    device = kind if num_rows * config.num_points >= FULL_PAIRS else ""  # small tasks have no targets

    def result() -> dict[str, Any]:
        return {
            "experiment": "benchmark",
            "config": config.settings(),
            "environment": machine | {"load_average": [load, os.getloadavg()[0]]},
            "wall_seconds": stages.total_seconds,
            "stage_seconds": stages.seconds,
            "peak_memory_bytes": peak_memory(),
            "memory_bytes_per_second": bandwidth,
            "records": records,
            "skipped": skipped,
        }

    for case in config.cases:
        for task in CASES[case](config, parts):
            if not _is_wanted(task, config):
                continue
            if config.max_seconds and stages.total_seconds > config.max_seconds:
                skipped.append(task.name)
                continue
            with stages.stage(task.name) as progress:
                options = {"device": device, "peer_seconds": peer_seconds, "rules": rules}
                records.append(measure(task, config.num_timings, progress, **options))
            keep(result())
    return result()
