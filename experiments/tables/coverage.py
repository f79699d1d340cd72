"""How often intervals for a released table contain the private statistic.

python -m experiments.tables.coverage                                   # invented tables, 200 releases at each ε
python -m experiments.tables.coverage --epsilons=1 --num_releases=10
python -m experiments.tables.coverage --dataset=adult --data_dir=FOLDER # a real table, see experiments.tables

Invented tables are people with an age, an income, a number of visits and four categories, which depend on each other. A
real table is the private part of a data set. Each table is measured with simulated noise, and questions about it are
answered as by ``kme_jax.estimate``. An interval covers if the private rows' own statistic is in it. Three intervals are
compared: the direct one; that of the bootstrap; and a *naive* one, which takes the released rows for real ones that
were sampled. The last one knows nothing of the noise. The last two need a synthesis, and replicates of it. So they are
computed for the first few releases alone.

Results go to <output_dir>/tables_coverage.json and .png, with the name of a real table at the end. An interrupted run
continues.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.special import ndtri

from experiments.common import datasets
from experiments.common.config import Config, at_least, flag, valid_budgets
from experiments.common.plots import COLOURS, pyplot, save
from experiments.common.program import run_main
from experiments.common.progress import Stages
from experiments.common.results import Cells, check_output_dir
from kme_jax import Categorical, Numeric, PrivacyBudget, Schema, estimate
from kme_jax.analysis import Estimate, bootstrap
from kme_jax.analysis.queries import Query
from kme_jax.analysis.replicates import NUM_REPLICATES
from kme_jax.analysis.sums import Sums
from kme_jax.analysis.tables import direct_estimates
from kme_jax.table.measure import measure_table

LEVEL = 0.95
METHODS = ("direct", "bootstrap", "naive")
PEOPLE = "people"
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
    "mean(income) by sex",
    "mean(income) by education",
    "mean(visits) by sex",
    "mean(income) where age>=40",
    "share(sex=f) by region",
    "share(income>=50) by sex",
    "share(age>=40 and income<20)",
    "correlation(age, income)",
    "regression(income ~ age + education + sex)",
    "regression(member=yes ~ income + sex)",
)
_OF_ADULT = (
    "mean(age)",
    "sd(age)",
    "median(age)",
    "mean(education-num)",
    "mean(hours-per-week)",
    "sd(hours-per-week)",
    "mean(capital-gain)",
    "mean(capital-loss)",
    "share(hours-per-week>=50)",
    "share(sex={woman})",
    "share(relationship={wife})",
    "share({rich})",
    "mean(age) where {rich}",
    "mean(hours-per-week) where {rich}",
    "share(sex={woman}) where {rich}",
    "share({rich}) by sex",
    "mean(age) by sex",
    "mean(hours-per-week) by sex",
    "mean(education-num) by race",
    "share({rich}) where education-num>=12",
    "share(sex={woman}) where relationship={wife}",
    "correlation(age, hours-per-week)",
    "correlation(education-num, hours-per-week)",
    "regression(hours-per-week ~ age + sex + education-num)",
    "regression({rich} ~ age + sex + education-num)",
)
_WORDS = {
    "adult": {"woman": "Female", "wife": "Wife", "rich": "income=>50K"},
    "adult_pgm": {"woman": "0", "wife": "4", "rich": "income>50K=1"},
}


@dataclasses.dataclass(frozen=True)
class CoverageConfig(Config):
    """Configuration: one field per flag."""

    dataset: str = flag(PEOPLE, f"The tables: {PEOPLE}, which are invented, {' or '.join(_WORDS)}.")
    data_dir: str = flag("", "Folder of a real data set.")
    num_rows: int = flag(5000, "N, rows of each invented table.", quick=500)
    epsilons: tuple[float, ...] = flag((0.3, 1.0, 3.0), "Privacy levels ε.", quick=(1.0,))
    delta: float = flag(1e-6, "δ of (ε, δ)-differential privacy.")
    num_releases: int = flag(200, "Releases at each ε.", quick=2)
    num_syntheses: int = flag(20, "Of these, those with synthetic rows, for the other two intervals.", quick=1)
    num_replicates: int = flag(NUM_REPLICATES, "Replicates of each release.", quick=4)
    output_dir: str = flag("results", "Folder for the JSON result and the picture.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        if self.dataset not in (PEOPLE, *_WORDS):
            raise ValueError(f"dataset must be {PEOPLE}, {' or '.join(_WORDS)}, got {self.dataset!r}")
        at_least(self, 100, "num_rows")
        at_least(self, 1, "num_releases")
        at_least(self, 0, "num_syntheses")
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


@dataclasses.dataclass(frozen=True)
class Task:
    """Tables to release, and questions about them.

    Attributes:
      table: by seed.
      schema: of the tables.
      target: name of a column.
      queries: the questions.
    """

    table: Callable[[int], pa.Table]
    schema: Schema
    target: str
    queries: tuple[str, ...]

    @classmethod
    def create(cls, config: CoverageConfig) -> Task:
        """The task of a configuration."""
        if config.dataset == PEOPLE:
            return cls(lambda seed: people(config.num_rows, seed), SCHEMA, TARGET, QUERIES)
        dataset = datasets.load(config.dataset, config.data_dir, 0)
        queries = tuple(text.format(**_WORDS[config.dataset]) for text in _OF_ADULT)
        return cls(lambda _: dataset.private, dataset.schema, dataset.target, queries)


def naive(query: Query, schema: Schema, table: pa.Table) -> dict[str, Estimate]:
    """The intervals of somebody who takes released rows for sampled ones; none for quantiles.

    Args:
      query: a question.
      schema: of the table.
      table: the released rows.

    Returns:
      Estimates by the text of the group, or by the name of the coefficient.
    """
    codes = schema.encode(table)
    answers = query.answer(schema, codes)
    if query.share_below is not None:
        return {}
    if query.terms:
        errors = _naive_errors(query, *query.of_terms(schema, codes), answers)
        return {name: Estimate.of(answers[name], error, LEVEL, method="naive") for name, error in errors.items()}
    found, values = {}, query.values(schema, codes)
    for name, group in query.groups(schema).items():
        kept = ~np.isnan(values)
        if query.where:
            of_where = dataclasses.replace(query, column=None, share=query.where, where=(), by=None)
            kept &= of_where.values(schema, codes) > 0
        if group is not None:
            kept &= group.has(codes)
        numbers = values[kept]
        if len(numbers) < 2:
            continue
        error = float(numbers.std()) / math.sqrt(len(numbers))
        if query.statistic == "sd":
            squares = np.std((numbers - numbers.mean()) ** 2)
            error = float(squares) / (2 * max(float(numbers.std()), 1e-300) * math.sqrt(len(numbers)))
        found[name] = Estimate.of(answers[name], error, LEVEL, method="naive")
    return found


def _naive_errors(query: Query, values: np.ndarray, kept: np.ndarray, answers: dict[str, float]) -> dict[str, float]:
    """Standard errors of textbooks: of a correlation, or of the coefficients of a linear regression."""
    values = values[kept]
    if query.statistic == "correlation":
        return {name: (1 - value**2) / math.sqrt(len(values)) for name, value in answers.items()}
    design = np.column_stack([np.ones(len(values)), values[:, 1:]])
    residuals = values[:, 0] - design @ np.asarray(list(answers.values()))
    variances = residuals.var() * np.diag(np.linalg.pinv(design.T @ design))
    return dict(zip(answers, np.sqrt(variances).tolist(), strict=True))


def _answers(task: Task, budget: PrivacyBudget, config: CoverageConfig, seed: int) -> dict[str, Any]:
    """For each question, and each group or coefficient of it, the private statistic and the intervals."""
    table, released, replicates = task.table(seed), None, None
    measured = measure_table(table, task.schema, budget=budget, target=task.target, secure=False, seed=seed)
    if seed < config.num_syntheses:
        released = measured.synthesise(seed=seed)
        replicates = bootstrap(released, config.num_replicates, seed=seed)
    codes, sums, answers = task.schema.encode(table), Sums.read(measured), {}
    for text in task.queries:
        query, found = Query.parse(text, task.schema), {}
        try:
            found["direct"] = direct_estimates(sums, query, LEVEL)
        except ValueError:  # noise hides the answer
            found["direct"] = {}
        if released is not None:
            found["naive"] = naive(query, task.schema, released.table)
            found["bootstrap"] = estimate(released, text, level=LEVEL, method="bootstrap", replicates=replicates)
        for name, private in query.answer(task.schema, codes).items():
            record = answers[f"{text}: {name}" if name else text] = {"private": _short(private)}
            for method, one in found.items():
                answer = one.get(name) if isinstance(one, dict) else one
                if answer is not None:
                    record[method] = {"low": _short(answer.low), "high": _short(answer.high)}
    return answers


def _short(value: float) -> float:
    """A number with seven digits, so that files are small."""
    return float(f"{value:.7g}")


def run(config: CoverageConfig) -> dict[str, Any]:
    """All releases. Each record is written to the result file when it is done."""
    name = _name(config)
    stages, folder, task = Stages(name), check_output_dir(config.output_dir), Task.create(config)
    cells = Cells(folder / f"{name}.json", "tables_coverage", config.settings("data_dir"), ("epsilon", "seed"))
    for seed in range(config.num_releases):
        for epsilon in config.epsilons:
            if (epsilon, seed) not in cells:
                with stages.stage(f"ε = {epsilon:g}, release {seed}"):
                    answers = _answers(task, PrivacyBudget(epsilon, config.delta), config, seed)
                    cells.add({"epsilon": epsilon, "seed": seed, "answers": answers})
    return cells.result


def _name(config: CoverageConfig) -> str:
    return "tables_coverage" if config.dataset == PEOPLE else f"tables_coverage_{config.dataset}"


def coverage(result: dict[str, Any], epsilon: float, text: str, method: str) -> tuple[float, float, int] | None:
    """The share of intervals that cover, their median width, and their number; None if there are none."""
    records = [cell["answers"][text] for cell in result["cells"] if cell["epsilon"] == epsilon]
    pairs = [(record["private"], record[method]) for record in records if method in record]
    if not pairs:
        return None
    covers = [interval["low"] <= private <= interval["high"] for private, interval in pairs]
    widths = [interval["high"] - interval["low"] for _, interval in pairs]
    return float(np.mean(covers)), float(np.median(widths)), len(pairs)


def _epsilons(result: dict[str, Any]) -> list[float]:
    return sorted({cell["epsilon"] for cell in result["cells"]})


def markdown(result: dict[str, Any]) -> str:
    """The result as a table of Markdown: coverage by question, method and ε, and the median width in brackets.

    An asterisk marks a question that fewer than nine tenths of the releases answer.
    """
    epsilons, texts = _epsilons(result), list(result["cells"][0]["answers"])
    columns = [(method, epsilon) for method in METHODS for epsilon in epsilons]
    lines = ["| question | " + " | ".join(f"{method}, ε = {epsilon:g}" for method, epsilon in columns) + " |"]
    lines.append("|---|" + "---|" * len(columns))
    shares: dict[tuple[str, float], list[float]] = {column: [] for column in columns}
    number = len({cell["seed"] for cell in result["cells"]})
    for text in texts:
        row = [f"| {text.replace('|', ' ')} "]
        for method, epsilon in columns:
            covered = coverage(result, epsilon, text, method)
            few = "\\*" if method == "direct" and covered is not None and covered[2] < 0.9 * number else ""
            row.append("| – " if covered is None else f"| {100 * covered[0]:.0f} %{few} ({covered[1]:.2g}) ")
            shares[method, epsilon] += [] if covered is None else [covered[0]]
        lines.append("".join(row) + "|")
    for label, function in (("mean of all", np.mean), ("lowest", np.min)):
        of_columns = [f"{100 * function(shares[column]):.1f} %" if shares[column] else "–" for column in columns]
        lines.append(f"| *{label}* | " + " | ".join(of_columns) + " |")
    return "\n".join(lines)


def draw(result: dict[str, Any], output: pathlib.Path) -> pathlib.Path:
    """Draws the shares of intervals that cover, for each question, against the level that they claim.

    Args:
      result: of :func:`run`.
      output: the picture to write, its format by suffix.

    Returns:
      The picture.
    """
    epsilons, texts = _epsilons(result), list(result["cells"][0]["answers"])
    size = (4 + 3.0 * len(epsilons), 1.5 + 0.2 * len(texts))
    figure, all_axes = pyplot().subplots(
        1, len(epsilons), figsize=size, sharey=True, squeeze=False, layout="constrained"
    )
    for axes, epsilon in zip(all_axes[0], epsilons, strict=True):
        for method, colour, marker in zip(METHODS, COLOURS, ("o", "s", "x"), strict=False):
            by_query = [(i, coverage(result, epsilon, text, method)) for i, text in enumerate(texts)]
            places = [(covered[0], i) for i, covered in by_query if covered is not None]
            axes.plot([share for share, _ in places], [i for _, i in places], marker, color=colour, label=method, ms=5)
        axes.axvline(LEVEL, color="grey", linewidth=0.8)
        axes.set(title=f"ε = {epsilon:g}", xlabel="share of intervals that cover", xlim=(-0.03, 1.03))
    all_axes[0, 0].set_yticks(range(len(texts)), texts, fontsize=7)
    all_axes[0, 0].set_ylim(len(texts) - 0.5, -0.5)
    figure.legend(*all_axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(METHODS))
    return save(figure, [output])


def main(config: CoverageConfig) -> None:
    """Runs the experiment, and prints its table."""
    result, path = run(config), pathlib.Path(config.output_dir) / _name(config)
    draw(result, path.with_suffix(".png"))
    error = ndtri(1 - (1 - LEVEL) / 2) * math.sqrt(LEVEL * (1 - LEVEL) / config.num_releases)
    print(f"{markdown(result)}\n{config.num_releases} releases: a share of {LEVEL:.0%} is known up to {error:.0%}")
    print(f"wrote {path}.json and .png")


if __name__ == "__main__":
    run_main(main, CoverageConfig)
