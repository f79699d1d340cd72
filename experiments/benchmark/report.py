"""Results of the benchmark: as text, from files, and put together from parts."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from experiments.common.errors import InputError, input_errors


def table(result: dict[str, Any]) -> str:
    """The result as text, with its targets."""
    where = result["environment"]
    lines = [
        f"{where['device']} ({where['processor']}, {where['usable_cores']} cores), jax {where['jax']}; "
        f"copies move {result['memory_bytes_per_second'] / 1e9:.0f} GB/s"
    ]
    if any(record.get("in_a_row") for record in result["records"]):
        lines.append("each timing is the mean of calls in a row, after some that do not count; first calls are apart")
    for record in result["records"]:
        rate, ceiling, goals = record["pairs_per_second"], record["ceiling"], record["targets"]
        speed = f", {rate:.3g} pairs/s" if rate else ""
        lines.append(f"{record['name']}: {record['median_seconds']:.3g} s{speed}")
        notes = [  # (what a target may be set for, its value, text)
            ("seconds", record["median_seconds"], ""),
            ("pairs_per_second", rate, ""),
            (
                None,
                None,
                f"first call {record['first_seconds']:.3g} s ({record['compile_seconds']:.2g} s to compile), "
                f"with the compile cache {record['cached_first_seconds']:.3g} s",
            ),
        ]
        if record["max_error"] is not None:
            notes.append(("max_error", record["max_error"], f"within {record['max_error']:.1e} of float64"))
        for name, peer in record["peers"].items():
            text = f"{peer['ratio']:.3g} x {name} ({_shown(peer)})" if peer["ratio"] else f"{name}: {peer['reason']}"
            notes.append((name, peer["ratio"], text))
        if ceiling:
            text = f"{ceiling['share']:.0%} of the exp ceiling ({ceiling['variant']})"
            notes.append(("ceiling", ceiling["share"], text))
        for name, value, text in notes:
            goal, verdict = goals.get(name), ""
            if goal is not None and value is not None:
                met = value <= goal if name in ("max_error", "seconds") else value >= goal
                verdict = f"target {goal:g}{'' if text else f' {name}'.replace('_', ' ')}: {'met' if met else 'MISSED'}"
            if text or verdict:
                lines.append(f"    {'; '.join(part for part in (text, verdict) if part)}")
    lines += [f"not begun, for want of time: {name}" for name in result["skipped"]]
    return "\n".join(lines)


def markdown(result: dict[str, Any]) -> str:
    """The result as a table of Markdown: a line for each case, with its peers.

    It shows what every version of the benchmark has recorded.
    """
    lines = [
        f"| {result['environment']['device_kind']}, {result['environment']['usable_cores']} cores "
        "| seconds | pairs per second | of the ceiling | times as fast as | seconds to compile |",
        "|---|---|---|---|---|---|",
    ]
    for record in result["records"]:
        rate, ceiling = record["pairs_per_second"], record["ceiling"]
        peers = [f"{name}: {peer['ratio']:.3g}" for name, peer in record["peers"].items() if peer["ratio"]]
        lines.append(
            f"| {record['name']} | {record['median_seconds']:.3g} | {f'{rate:.3g}' if rate else '–'} | "
            f"{format(ceiling['share'], '.0%') if ceiling else '–'} | {', '.join(peers) or '–'} | "
            f"{record['compile_seconds']:.2g} |"
        )
    return "\n".join(lines)


def _shown(contender: dict[str, Any]) -> str:
    rows = f", {contender['num_rows']} rows" if contender["num_rows"] else ""
    return f"{contender['variant']}{rows}"


def load(path: str) -> dict[str, Any]:
    """An earlier result.

    Raises:
      InputError: if the file has no result of the benchmark.
    """
    with input_errors(f"--input={path}: "):
        result = json.loads(pathlib.Path(path).read_text())
    if not isinstance(result, dict) or result.get("experiment") != "benchmark" or "skipped" not in result:
        raise InputError(f"--input={path}: not a result of experiments.benchmark")
    return result


def file_name(result: dict[str, Any]) -> str:
    """Name of the file of a result: benchmark_cpu.json, or benchmark_<kind of accelerator>.json."""
    platform, kind = result["environment"]["device"].partition(":")[0], result["environment"]["device_kind"]
    return f"benchmark_{'cpu' if platform == 'cpu' else re.sub('[^a-z0-9]+', '_', kind.lower()).strip('_')}.json"


def merge(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One result for each device. Of records with the same name the last one is kept.

    Raises:
      InputError: if parts for one device differ in commit, versions or machine.
    """
    merged: dict[str, dict[str, Any]] = {}
    for result in results:
        name, varying = file_name(result), ("load_average",)
        if name not in merged:
            merged[name] = result
            continue
        before = merged[name]
        for key, value in result["environment"].items():
            if key not in varying and before["environment"].get(key) != value:
                raise InputError(
                    f"--input: two results for {name} differ in {key}: {before['environment'].get(key)} and {value}"
                )
        records = {record["name"]: record for record in before["records"] + result["records"]}
        chosen = {
            name: list(dict.fromkeys([*before["config"].get(name, ()), *result["config"].get(name, ())]))
            for name in ("cases", "dims", "dtypes", "rows")
        }
        merged[name] = before | {
            "config": result["config"] | chosen,
            "wall_seconds": before["wall_seconds"] + result["wall_seconds"],
            "stage_seconds": before["stage_seconds"] | result["stage_seconds"],
            "peak_memory_bytes": max(before["peak_memory_bytes"], result["peak_memory_bytes"]),
            "records": list(records.values()),
            "skipped": [name for name in before["skipped"] + result["skipped"] if name not in records],
        }
    return list(merged.values())
