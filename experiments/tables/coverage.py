"""How often intervals for a released table contain the private statistic.

python -m experiments.tables.coverage                                   # 25 releases at each ε
python -m experiments.tables.coverage --epsilons=1 --num_releases=10

Tables are invented: people with an age, an income, a number of visits and four categories, which depend on each other.
Each table is released once, with simulated noise, and ``kme_jax.estimate`` answers questions about it. An interval
covers if the private rows' own statistic is in it. Three intervals are compared: that of the bootstrap; the direct one,
where there is one; and a *naive* one, which takes the released rows for real ones that were sampled. The last one knows
nothing of the noise.

Results go to <output_dir>/tables_coverage.json and .png. An interrupted run continues.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.special import ndtri

from experiments.common.config import Config, at_least, flag, valid_budgets
from experiments.common.plots import COLOURS, pyplot, save
from experiments.common.program import run_main
from experiments.common.progress import Stages
from experiments.common.results import Cells, check_output_dir
from kme_jax import Categorical, Numeric, PrivacyBudget, Schema, estimate, release_table
from kme_jax.analysis import Estimate, bootstrap
from kme_jax.analysis.direct import direct_answer
from kme_jax.analysis.queries import Query

LEVEL = 0.95
METHODS = ("bootstrap", "direct", "naive")
SCHEMA = Schema(
    (
        Categorical("education", ("none", "school", "college", "university")),
        Numeric("age", 18, 90, integer=True),
        Numeric("income", 0, 200, step=0.1),
        Numeric("visits", 0, 30, integer=True),
        Categorical("sex", ("f", "m")),
        Categorical("region", ("a", "b", "c", "d", "e", "f")),
        Categorical("member", ("no", "yes")),
    )
)
TARGET = "member"
QUERIES = (
    "mean(age)",
    "sd(age)",
    "quantile(age, 0.9)",
    "mean(income)",
    "sd(income)",
    "median(income)",
    "mean(visits)",
    "sd(visits)",
    "share(age>=65)",
    "share(education=university)",
    "share(region=e)",
    "share(member=yes)",
    "mean(income) where member=yes",
    "mean(age) where member=yes",
    "share(sex=f) where member=no",
    "share(education=none and member=yes)",
)


@dataclasses.dataclass(frozen=True)
class CoverageConfig(Config):
    """Configuration: one field per flag."""

    num_rows: int = flag(5000, "N, rows of each table.", quick=500)
    epsilons: tuple[float, ...] = flag((1.0, 3.0), "Privacy levels ε.", quick=(1.0,))
    delta: float = flag(1e-6, "δ of (ε, δ)-differential privacy.")
    num_releases: int = flag(25, "Tables, each released at each ε.", quick=2)
    num_replicates: int = flag(16, "Replicates of each release.", quick=4)
    output_dir: str = flag("results", "Folder for the JSON result and the picture.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        at_least(self, 100, "num_rows")
        at_least(self, 1, "num_releases")
        at_least(self, 4, "num_replicates")
        valid_budgets(self.epsilons, self.delta)


def people(num_rows: int, seed: int) -> pa.Table:
    """An invented table."""
    rng = np.random.default_rng(seed)
    education = rng.choice(4, num_rows, p=[0.2, 0.4, 0.25, 0.15])
    age = np.clip(rng.normal(45, 14, num_rows), 18, 90).round().astype(int)
    income = np.exp(3 + 0.25 * education + 0.006 * (age - 45) + 0.4 * rng.normal(size=num_rows)).clip(0, 200).round(1)
    sex, region = rng.choice(2, num_rows), rng.choice(6, num_rows, p=[0.3, 0.25, 0.2, 0.1, 0.1, 0.05])
    member = rng.random(num_rows) < 1 / (1 + np.exp(1 - income / 30 - 0.5 * sex))
    columns: dict[str, Any] = {"age": age, "income": income, "visits": np.minimum(rng.poisson(0.02 * age), 30)}
    codes = {"education": education, "sex": sex, "region": region, "member": member.astype(int)}
    for name, values in codes.items():
        columns[name] = SCHEMA.columns[SCHEMA.index(name)].decode(values)
    return pa.table({name: columns[name] for name in SCHEMA.names})


def naive(query: Query, table: pa.Table) -> Estimate | None:
    """The interval of somebody who takes released rows for sampled ones; None for quantiles."""
    codes = SCHEMA.encode(table)
    if query.quantile is not None or query.statistic == "median":
        return None
    values = query.values(SCHEMA, codes)
    rows = np.ones(len(codes), bool)
    if query.where:
        rows = dataclasses.replace(query, column=None, share=query.where, where=()).values(SCHEMA, codes) > 0
    values, value = values[rows], query.answer(SCHEMA, codes)[""]
    error = float(values.std()) / math.sqrt(len(values))
    if query.statistic == "sd":
        error = float(np.std((values - values.mean()) ** 2)) / (2 * float(values.std()) * math.sqrt(len(values)))
    return Estimate.of(value, error, LEVEL, method="naive")


def _answers(table: pa.Table, budget: PrivacyBudget, num_replicates: int, seed: int) -> dict[str, Any]:
    """For each query, the private statistic and the intervals."""
    released = release_table(table, SCHEMA, budget=budget, target=TARGET, secure=False, seed=seed)
    replicates, codes, answers = bootstrap(released, num_replicates, seed=seed), SCHEMA.encode(table), {}
    for text in QUERIES:
        query = Query.parse(text, SCHEMA)
        record: dict[str, Any] = {"private": query.answer(SCHEMA, codes)[""]}
        for method in METHODS:
            if method == "naive":
                answer = naive(query, released.table)
            elif method == "direct" and direct_answer(released.measurement, query) is None:
                answer = None
            else:
                answer = estimate(released, text, level=LEVEL, method=method, replicates=replicates)
            if isinstance(answer, Estimate):
                fields = ("value", "standard_error", "low", "high")
                record[method] = {field: getattr(answer, field) for field in fields}
        answers[text] = record
    return answers


def run(config: CoverageConfig) -> dict[str, Any]:
    """All releases. Each record is written to <output_dir>/tables_coverage.json when it is done."""
    stages, folder = Stages("tables_coverage"), check_output_dir(config.output_dir)
    cells = Cells(folder / "tables_coverage.json", "tables_coverage", config.settings(), ("epsilon", "seed"))
    for seed in range(config.num_releases):
        for epsilon in config.epsilons:
            if (epsilon, seed) not in cells:
                with stages.stage(f"ε = {epsilon:g}, table {seed}"):
                    budget = PrivacyBudget(epsilon, config.delta)
                    answers = _answers(people(config.num_rows, seed), budget, config.num_replicates, seed)
                    cells.add({"epsilon": epsilon, "seed": seed, "answers": answers})
    return cells.result


def coverage(result: dict[str, Any], epsilon: float, text: str, method: str) -> tuple[float, float, int] | None:
    """The share of intervals that cover, their median width, and their number; None if there are none."""
    records = [cell["answers"][text] for cell in result["cells"] if cell["epsilon"] == epsilon]
    pairs = [(record["private"], record[method]) for record in records if method in record]
    if not pairs:
        return None
    covers = [interval["low"] <= private <= interval["high"] for private, interval in pairs]
    widths = [interval["high"] - interval["low"] for _, interval in pairs]
    return float(np.mean(covers)), float(np.median(widths)), len(pairs)


def markdown(result: dict[str, Any]) -> str:
    """The result as a table of Markdown: coverage, and the median width in brackets."""
    lines = ["| ε | question | " + " | ".join(METHODS) + " |", "|---|---|" + "---|" * len(METHODS)]
    for epsilon in sorted({cell["epsilon"] for cell in result["cells"]}):
        shares: dict[str, list[float]] = {method: [] for method in METHODS}
        for text in QUERIES:
            row = [f"| {epsilon:g} | {text} "]
            for method in METHODS:
                covered = coverage(result, epsilon, text, method)
                row.append("| – " if covered is None else f"| {100 * covered[0]:.0f} % ({covered[1]:.2g}) ")
                shares[method] += [] if covered is None else [covered[0]]
            lines.append("".join(row) + "|")
        means = " | ".join(f"{100 * np.mean(values):.0f} %" if values else "–" for values in shares.values())
        lines.append(f"| {epsilon:g} | all of them | {means} |")
    return "\n".join(lines)


def draw(result: dict[str, Any], output: pathlib.Path) -> pathlib.Path:
    """Draws the shares of intervals that cover, for each question, against the level that they claim.

    Args:
      result: of :func:`run`.
      output: the picture to write, its format by suffix.

    Returns:
      The picture.
    """
    epsilons = sorted({cell["epsilon"] for cell in result["cells"]})
    figure, all_axes = pyplot().subplots(
        1, len(epsilons), figsize=(4 + 3.5 * len(epsilons), 5.5), sharey=True, squeeze=False, layout="constrained"
    )
    for axes, epsilon in zip(all_axes[0], epsilons, strict=True):
        for method, colour, marker in zip(METHODS, COLOURS, ("o", "s", "x"), strict=False):
            by_query = [(i, coverage(result, epsilon, text, method)) for i, text in enumerate(QUERIES)]
            places = [(covered[0], i) for i, covered in by_query if covered is not None]
            axes.plot([share for share, _ in places], [i for _, i in places], marker, color=colour, label=method)
        axes.axvline(LEVEL, color="grey", linewidth=0.8)
        axes.set(title=f"ε = {epsilon:g}", xlabel="share of intervals that cover", xlim=(-0.03, 1.03))
    all_axes[0, 0].set_yticks(range(len(QUERIES)), QUERIES)
    all_axes[0, 0].invert_yaxis()
    all_axes[0, 0].legend(loc="lower left")
    return save(figure, [output])


def main(config: CoverageConfig) -> None:
    """Runs the experiment, and prints its table."""
    result, path = run(config), pathlib.Path(config.output_dir) / "tables_coverage"
    draw(result, path.with_suffix(".png"))
    error = ndtri(1 - (1 - LEVEL) / 2) * math.sqrt(LEVEL * (1 - LEVEL) / config.num_releases)
    print(f"{markdown(result)}\n{config.num_releases} releases: a share of {LEVEL:.0%} is known up to {error:.0%}")
    print(f"wrote {path}.json and .png")


if __name__ == "__main__":
    run_main(main, CoverageConfig)
