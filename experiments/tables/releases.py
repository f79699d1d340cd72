"""Releases of real tables beside controls: errors of marginals, and what a classifier learns from the rows."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pyarrow as pa

from experiments.common import datasets
from experiments.common.processes import Measured, in_fresh_process
from experiments.common.progress import Stages
from experiments.common.results import Cells, check_output_dir, write_json
from experiments.tables import numbers
from experiments.tables.classifiers import CLASSIFIERS, utility
from experiments.tables.config import TablesConfig
from experiments.tables.live_peers import PEERS, run_peer
from kme_jax import PrivacyBudget
from kme_jax.privacy.budget import REPLACE_ONE, Relation
from kme_jax.table import marginals
from kme_jax.table.measure import release_table
from kme_jax.table.schema import Schema

_RELEASE, _MORE = "release", "release, {} times the rows"
_CONTROLS: dict[str, Callable[[np.random.Generator, np.ndarray], np.ndarray]] = {
    "real rows": lambda rng, codes: codes,
    "independent columns": lambda rng, codes: rng.permuted(codes, axis=0),
    "real sample": lambda rng, codes: codes[rng.integers(0, len(codes), len(codes))],
}
_METRICS = {f"{order}-way": f"{order}-way" for order in marginals.ORDERS} | {
    f"{score} {name}": f"{score.upper()}, {label}" for score in ("auc", "f1") for name, label in CLASSIFIERS.items()
}


def result_path(config: TablesConfig, dataset: str) -> pathlib.Path:
    """Where the results of a data set are kept."""
    relation = "" if config.relation == REPLACE_ONE else f"_{config.relation}"
    return pathlib.Path(config.output_dir) / f"tables_{dataset}{relation}.json"


def release(
    rows: pa.Table, schema: Schema, target: str | None, budget: PrivacyBudget, seed: int, secure: bool, times: int = 1
) -> pa.Table:
    """The synthetic rows of one release, or so many times as many rows of it. It runs in a process of its own."""
    released = release_table(rows, schema, budget=budget, target=target, seed=seed, secure=secure)
    return released.table if times == 1 else released.sample(times * released.table.num_rows, seed=seed)


@dataclasses.dataclass(frozen=True)
class Tools:
    """The functions that a run calls.

    Attributes:
      load: (name, data_dir, seed) -> data set.
      release: see :func:`release`.
      measured: (function, arguments) -> the call's value, time and memory.
      run_peer: see :func:`experiments.tables.live_peers.run_peer`.
    """

    load: Callable[[str, str, int], datasets.Dataset] = datasets.load
    release: Callable[..., pa.Table] = release
    measured: Callable[..., Measured] = in_fresh_process
    run_peer: Callable[..., dict[str, Any]] = run_peer


DEFAULT_TOOLS = Tools()


def run(config: TablesConfig, tools: Tools = DEFAULT_TOOLS) -> dict[str, dict[str, Any]]:
    """All data sets, {name: result}. Each record is written to its JSON when it is done.

    Args:
      config: the configuration.
      tools: the functions that are called.

    Raises:
      InputError: if data are missing.
    """
    check_output_dir(config.output_dir)
    return {name: _run(config, name, tools) for name in config.datasets}


def _run(config: TablesConfig, name: str, tools: Tools) -> dict[str, Any]:
    stages, path = Stages(f"tables, {name}"), result_path(config, name)
    flags = [field.name for field in dataclasses.fields(config) if field.name.startswith("peer")]
    settings = config.settings("data_dir", "datasets", *flags) | {"dataset": name}
    cells = Cells(path, "tables", settings, ("source", "epsilon", "seed"))
    times = {_RELEASE: 1} | ({_MORE.format(config.more_rows): config.more_rows} if config.more_rows > 1 else {})
    sources = [(control, None) for control in _CONTROLS]
    sources += [(kind, float(epsilon)) for kind in times for epsilon in config.epsilons]
    of_peers = [(PEERS[peer], float(epsilon)) for epsilon in config.peer_epsilons for peer in config.peers]
    for seed in range(config.num_seeds):
        wanted = sources + of_peers if seed < config.peer_seeds else sources
        missing = [source for source in wanted if (*source, seed) not in cells]
        if not missing:
            continue
        with stages.stage(f"seed {seed}") as progress:
            dataset = tools.load(name, config.data_dir, seed)
            private, test = (dataset.schema.encode(rows) for rows in (dataset.private, dataset.test))
            for done, (source, epsilon) in enumerate(missing):
                facts, codes = _synthetic(config, tools, dataset, private, source, epsilon, seed, times)
                cell = {"source": source, "epsilon": epsilon, "seed": seed} | facts
                if codes is not None:
                    cell["total_variation"] = marginals.means(marginals.total_variation(dataset.schema, private, codes))
                    cell["utility"] = utility(dataset.schema, dataset.target, codes, test, seed)
                cells.add(cell)
                progress(done + 1, len(missing))
    cells.result["summary"] = summary(cells.result)
    write_json(path, cells.result)
    return cells.result


def _synthetic(
    config: TablesConfig,
    tools: Tools,
    dataset: datasets.Dataset,
    private: np.ndarray,
    source: str,
    epsilon: float | None,
    seed: int,
    times: dict[str, int],
) -> tuple[dict[str, Any], np.ndarray | None]:
    """Facts about the rows of a source, and their codes, or None if another system has made none.

    ``times`` has the number of rows of each kind of release, as a multiple of the private rows.
    """
    if epsilon is None:
        return {}, _CONTROLS[source](np.random.default_rng(seed), private)
    delta = protective_delta(config.delta, dataset.private.num_rows)
    budget = PrivacyBudget(epsilon, delta, cast(Relation, config.relation))
    if source in times:
        arguments = dataset.private, dataset.schema, dataset.target, budget, seed, config.secure, times[source]
        synthetic = tools.measured(tools.release, *arguments)
        dataset.schema.check(synthetic.value)
        codes = dataset.schema.encode(synthetic.value)
        facts = {"delta": delta, "seconds": synthetic.seconds, "peak_bytes": synthetic.peak_bytes}
    else:
        peer = next(name for name, title in PEERS.items() if title == source)
        limits = config.peer_python, config.peer_minutes
        facts = {"delta": delta} | tools.run_peer(peer, dataset.schema, private, epsilon, delta, seed, *limits)
        if "failed" in facts:
            return facts, None
        codes = facts.pop("codes")
    return facts | {"numbers": numbers.number_errors(dataset.schema, private, codes, budget)}, codes


def protective_delta(delta: float, num_rows: int) -> float:
    """δ, or the largest power of ten below 1/N if δ is 1/N or more, which would protect nobody."""
    return delta if delta * num_rows < 1 else 10.0 ** -(math.floor(math.log10(num_rows)) + 1)


def _metrics(cell: dict[str, Any]) -> dict[str, float]:
    metrics = {f"{order}-way": value for order, value in cell["total_variation"].items()}
    metrics |= {f"{score} {name}": value for name, both in cell["utility"].items() for score, value in both.items()}
    return metrics | {name: cell[name] for name in ("seconds", "peak_bytes") if name in cell}


def summary(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Means over seeds and their standard errors for each control and each ε.

    "mean" and "error" are {metric: value}. The error of a single seed is None. Releases of other systems that failed
    are not among them.
    """
    groups: dict[tuple, list[dict[str, float]]] = {}
    for cell in result["cells"]:
        if "failed" in cell:
            continue
        groups.setdefault((cell["source"], cell["epsilon"]), []).append(_metrics(cell))
    lines = []
    deltas = {(cell["source"], cell["epsilon"]): cell.get("delta") for cell in result["cells"]}
    for (source, epsilon), metrics_of_seeds in groups.items():
        of_numbers = [
            cell["numbers"]
            for cell in result["cells"]
            if (cell["source"], cell["epsilon"]) == (source, epsilon) and "numbers" in cell
        ]
        values = {name: np.asarray([metrics[name] for metrics in metrics_of_seeds]) for name in metrics_of_seeds[0]}
        lines.append(
            {
                "source": source,
                "epsilon": epsilon,
                "delta": deltas[source, epsilon],
                "num_seeds": len(metrics_of_seeds),
                "mean": {name: float(v.mean()) for name, v in values.items()},
                "error": {
                    name: float(v.std(ddof=1) / len(v) ** 0.5) if len(v) > 1 else None for name, v in values.items()
                },
            }
            | ({"numbers": numbers.summary(of_numbers)} if of_numbers else {})
        )
    return lines


def _failures(result: dict[str, Any]) -> list[str]:
    """Which releases of other systems failed, and why, with the number of releases and of all that were tried."""
    reasons = [
        f"{cell['source']}, ε = {cell['epsilon']:g}: {cell['failed']}" for cell in result["cells"] if "failed" in cell
    ]
    tried = [f"{cell['source']}, ε = {cell['epsilon'] or 0:g}" for cell in result["cells"]]
    return [
        f"{reason} ({reasons.count(reason)} of {tried.count(reason.split(':')[0])})"
        for reason in dict.fromkeys(reasons)
    ]


def data_title(result: dict[str, Any]) -> str:
    """Name of the data set, and δ of its releases."""
    deltas = sorted({line["delta"] for line in result["summary"] if line["delta"] is not None})
    relation = result["config"].get("relation", REPLACE_ONE)
    relations = [] if relation == REPLACE_ONE else [relation]
    return ", ".join([result["config"]["dataset"], *relations, *(f"δ = {delta:g}" for delta in deltas)])


def markdown(result: dict[str, Any]) -> str:
    """The summary as a table: mean ± standard error, seconds, and peak memory of a release."""
    lines = [
        f"| {data_title(result)} | {' | '.join(_METRICS.values())} | seconds | MiB |",
        "|---|" + "---|" * (len(_METRICS) + 2),
    ]

    def line(title: str, mean: dict[str, float], error: dict[str, float | None]) -> str:
        texts = []
        for name in _METRICS:
            text = f"{mean[name]:.3f}" if name in mean else "–"
            texts.append(text if error.get(name) is None else f"{text} ± {error[name]:.3f}")
        texts.append(f"{mean['seconds']:.0f}" if "seconds" in mean else "–")
        texts.append(f"{mean['peak_bytes'] / 2**20:.0f}" if "peak_bytes" in mean else "–")
        return f"| {title} | {' | '.join(texts)} |"

    for row in result["summary"]:
        title = row["source"] if row["epsilon"] is None else f"{row['source']}, ε = {row['epsilon']:g}"
        lines.append(line(title, row["mean"], row["error"]))
    lines += [line(title, {}, {}) for title in _failures(result)]
    return "\n".join(lines)
