"""Attacks on the releases: is the noise as large as the privacy statement says?

python -m experiments.audit                       # all mechanisms and maps, some minutes
python -m experiments.audit --epsilons=1 --num_runs=20000

For each feature map two neighbouring databases whose sums differ as much as the map allows, as far as could be found.
An attacker who knows both sees one noisy embedding and says which it was, by the likelihood ratio with a threshold
fixed on separate runs. His errors, with Clopper-Pearson confidence bounds, give a lower bound of μ (Gaussian
differential privacy, Dong, Roth & Su 2022) or of a pure ε: above the claim it would be a proof that the claim is wrong.
Two broken mechanisms show that the attack finds what there is to be found.

Two more attacks are on how cells become codes. One compares codes of many random neighbouring tables, in containers of
many kinds (``experiments.containers``). The other one looks at releases of two DataFrames, where one cell makes the
type of a column another one. Both are also made against the encoder that the library had before, which they have to
find out. Results go to <output_dir>/audit.json and audit.png.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pandas
import scipy.stats

from experiments import common, containers, plots
from experiments.common import flag
from kme_jax import (
    Bounds,
    FourierMap,
    Gaussian,
    LatticeMap,
    PrivacyBudget,
    SubspaceMap,
    cli,
    integer_embedding,
    mean_embedding,
)
from kme_jax._numerics.precision import float64
from kme_jax.feature_maps import FeatureMap
from kme_jax.points.measure import plan_map
from kme_jax.points.release import Measurement
from kme_jax.privacy import (
    add_noise,
    gaussian_noise_multiplier,
    secure,
    secure_mechanism,
    simulated_mechanism,
)
from kme_jax.table import Numeric, Schema, measure_table

_KERNEL = Gaussian(0.5)
_NUM_ROWS = 20
_PILOT = 5  # the threshold is fixed on a fifth as many runs
_CONFIDENCE = 0.995  # of each of two bounds
_BLOCK = 5000  # runs drawn at once
_NUM_TABLE_ROWS = 100


@dataclasses.dataclass(frozen=True)
class AuditConfig:
    """Configuration: one field per flag."""

    epsilons: tuple[float, ...] = flag((1.0, 10.0), "Privacy levels ε to attack.")
    delta: float = flag(1e-6, "δ of the Gaussian mechanisms.")
    num_runs: int = flag(100_000, "Noisy embeddings under each of two neighbouring databases.")
    num_releases: int = flag(
        200, "Whole releases under each: by the command for the largest ε, and of DataFrames for all."
    )
    num_cases: int = flag(50_000, "Neighbouring tables in containers of many kinds.")
    seed: int = flag(0, "Of frequencies and simulated noise. Secure noise has none.")
    output_dir: str = flag("results", "Folder for the JSON results and the picture.")

    def validate(self) -> None:
        """Raises InputError for what cannot be run."""
        if not self.epsilons or min(self.epsilons) <= 0:
            raise common.InputError(f"--epsilons must be positive, got {self.epsilons}")
        if self.num_runs < 100 or self.num_releases < 10:
            raise common.InputError("--num_runs must be at least 100, and --num_releases at least 10")
        if self.num_cases < 20:
            raise common.InputError(f"--num_cases must be at least 20, got {self.num_cases}")
        with common.input_errors():
            for epsilon in self.epsilons:
                PrivacyBudget(epsilon, self.delta)


@dataclasses.dataclass(frozen=True, eq=False)
class _Pair:
    """A map and two rows far apart under it."""

    feature_map: FeatureMap
    first: np.ndarray
    second: np.ndarray

    def databases(self) -> tuple[np.ndarray, np.ndarray]:
        """Two that differ in the last row."""
        others = np.zeros((_NUM_ROWS - 1, len(self.first)))
        return tuple(np.concatenate([others, row[None, :]]) for row in (self.first, self.second))


def _opposite(feature_map: FourierMap, seed: int) -> np.ndarray:
    """A row whose features are as far as possible from those of 0, among many."""
    rows = np.random.default_rng(seed).uniform(-300, 300, (400_000, feature_map.dim))
    angles = rows @ (2 * math.pi * np.asarray(feature_map.turns, np.float64).T)
    return rows[np.argmin(np.cos(angles).mean(axis=1))]


def pairs(seed: int) -> dict[str, _Pair]:
    """Maps with few features, so that there can be many runs."""
    fourier = FourierMap.from_kernel(jax.random.key(seed), _KERNEL, 4, 1)
    lattice = LatticeMap.from_box(_KERNEL, [-4.0], [4.0])
    subspace = SubspaceMap.from_points(_KERNEL, np.linspace(-8, 8, 9)[:, None])
    return {
        "fourier": _Pair(fourier, np.zeros(1), _opposite(fourier, seed)),
        "lattice": _Pair(lattice, np.array([-4.0]), np.array([4.0])),
        "subspace": _Pair(subspace, np.array([-8.0]), np.array([8.0])),
    }


# -- the attack

Sampler = Callable[[int, int], np.ndarray]
"""(which database, runs) -> the attacker's statistic of each run."""


def _errors(sampler: Sampler, runs: int, progress) -> tuple[np.ndarray, np.ndarray]:
    values = ([], [])
    for start in range(0, runs, _BLOCK):
        for which in (0, 1):
            values[which].append(sampler(which, min(_BLOCK, runs - start)))
        progress(min(start + _BLOCK, runs), runs)
    return np.concatenate(values[0]), np.concatenate(values[1])


def _bound(successes: int, runs: int, side: str) -> float:
    interval = scipy.stats.binomtest(successes, runs).proportion_ci(2 * _CONFIDENCE - 1, method="exact")
    return interval.low if side == "low" else interval.high


def _mu(true_positives: float, false_positives: float) -> float:
    return float(scipy.stats.norm.ppf(true_positives) - scipy.stats.norm.ppf(false_positives))


def _epsilon(true_positives: float, false_positives: float) -> float:
    return math.log(true_positives / false_positives) if true_positives > 0 else -math.inf


def lower_bound(
    sampler: Sampler, runs: int, measure: Callable[[float, float], float], progress=lambda *_: None
) -> dict[str, float]:
    """A lower bound of μ or ε with 99 % confidence, and the estimate.

    Args:
      sampler: statistics, larger under the second database.
      runs: under each database, for the bound; a fifth of it, apart, to fix the threshold.
      measure: of a true and a false positive rate.
      progress: called with (runs done, runs in all).
    """
    pilot = [np.sort(values) for values in _errors(sampler, max(20, runs // _PILOT), lambda *_: None)]
    grid = np.quantile(np.concatenate(pilot), np.linspace(0.02, 0.98, 97))
    rates = [1 - np.searchsorted(values, grid) / len(values) for values in pilot]
    size = len(pilot[0])
    scores = [
        measure(_bound(round(t * size), size, "low"), _bound(round(f * size), size, "high"))
        for f, t in zip(*rates, strict=True)
    ]
    threshold = grid[int(np.argmax(scores))]
    first, second = _errors(sampler, runs, progress)
    positives = [int((values >= threshold).sum()) for values in (second, first)]
    low = measure(_bound(positives[0], runs, "low"), _bound(positives[1], runs, "high"))
    clipped = np.clip(np.asarray(positives) / runs, 0.5 / runs, 1 - 0.5 / runs)
    return {"lower_bound": low, "estimate": measure(*clipped), "runs": runs}


# -- what is attacked


def _gaussian_sampler(totals, add: Callable[[np.ndarray], np.ndarray]) -> Sampler:
    """Projections on the line between the two embeddings."""
    direction = (totals[1] - totals[0]).astype(np.float64)
    direction /= np.linalg.norm(direction)
    size = len(direction)

    def sample(which, runs):
        noisy = add(np.tile(totals[which], runs)).reshape(runs, size)
        return (noisy - totals[0]).astype(np.float64) @ direction

    return sample


def _laplace_sampler(totals, scale: float, add) -> Sampler:
    def sample(which, runs):
        noisy = add(np.tile(totals[which], runs)).reshape(runs, len(totals[0]))
        far, near = (np.abs((noisy - total).astype(np.float64)).sum(axis=1) for total in totals)
        return (far - near) / scale

    return sample


def _secure_totals(pair: _Pair):
    embeddings = [integer_embedding(pair.feature_map, rows) for rows in pair.databases()]
    return embeddings[0].integer_map, [e.integer_map.released(e.total) for e in embeddings]


def _share(totals, sensitivity: float) -> float:
    return float(np.linalg.norm((totals[1] - totals[0]).astype(np.float64)) / sensitivity)


def _secure_gaussian(pair: _Pair, budget: PrivacyBudget, runs: int, progress, *, factor: float = 1.0):
    """``perturb_securely``'s own sums, scale and noise; a factor below 1 breaks it."""
    integers, totals = _secure_totals(pair)
    mechanism = secure_mechanism(integers, _NUM_ROWS, budget)
    scale = factor * mechanism.scale / mechanism.grid
    found = lower_bound(
        _gaussian_sampler(totals, lambda values: secure.add_gaussian(values, scale)), runs, _mu, progress
    )
    share = _share(totals, mechanism.sensitivity / mechanism.grid)
    return found | {"measure": "mu", "claim": math.sqrt(2 * mechanism.rho), "share_of_diameter": share}


def _secure_laplace(pair: _Pair, epsilon: float, runs: int, progress):
    integers, totals = _secure_totals(pair)
    mechanism = secure_mechanism(integers, _NUM_ROWS, PrivacyBudget(epsilon, 0.0))
    scale = mechanism.scale / mechanism.grid
    sampler = _laplace_sampler(totals, scale, lambda values: secure.add_laplace(values, scale))
    found = lower_bound(sampler, runs, _epsilon, progress)
    share = float(np.abs(totals[1] - totals[0]).sum() * mechanism.grid / mechanism.sensitivity)
    return found | {"measure": "epsilon", "claim": epsilon, "share_of_diameter": share}


def _simulated(totals, scale: float, seed: int) -> Sampler:
    keys = iter(jax.random.split(jax.random.key(seed), 100_000))

    def add(values):
        with float64():
            return np.asarray(add_noise(next(keys), values, scale))

    return _gaussian_sampler(totals, add)


def _simulated_gaussian(pair: _Pair, budget: PrivacyBudget, runs: int, progress, seed: int):
    totals = [mean_embedding(pair.feature_map, rows).coordinates for rows in pair.databases()]
    mechanism = simulated_mechanism(pair.feature_map, _NUM_ROWS, budget)
    found = lower_bound(_simulated(totals, mechanism.scale, seed), runs, _mu, progress)
    share = _share(totals, mechanism.sensitivity)
    return found | {"measure": "mu", "claim": mechanism.sensitivity / mechanism.scale, "share_of_diameter": share}


def _unpaired(budget: PrivacyBudget, runs: int, progress, seed: int):
    """√(2/J) cos(ωx + b) with noise for a diameter of 2, as published: it is up to 2√2."""
    rng = np.random.default_rng(seed)
    frequencies, shifts = rng.normal(size=4), rng.uniform(0, 2 * math.pi, 4)
    rows = rng.uniform(-300, 300, 400_000)
    features = math.sqrt(2 / 4) * np.cos(rows[:, None] * frequencies + shifts)
    signs = np.sign(features[np.argmax(np.square(features).sum(axis=1))])
    along = features @ signs
    totals = [features[np.argmin(along)] / _NUM_ROWS, features[np.argmax(along)] / _NUM_ROWS]
    multiplier = gaussian_noise_multiplier(budget)
    found = lower_bound(_simulated(totals, 2 / _NUM_ROWS * multiplier, seed), runs, _mu, progress)
    return found | {"measure": "mu", "claim": 1 / multiplier, "share_of_diameter": _share(totals, 2 / _NUM_ROWS)}


def _whole_command(pair: _Pair, budget: PrivacyBudget, runs: int, progress):
    """The command ``kme-jax release``, from a private file to a folder, again and again."""
    bounds = Bounds.create([-8.0], [8.0])
    points, databases = pair.feature_map.points, pair.databases()
    length = 1 / math.sqrt(2 * _KERNEL.gamma) / 16
    feature_map = plan_map(Gaussian(1 / (2 * length**2)), bounds.to_unit(points), bounded=True)
    embeddings = [integer_embedding(feature_map, rows, bounds=bounds) for rows in databases]
    integers = embeddings[0].integer_map
    totals = [embedding.integer_map.released(embedding.total) for embedding in embeddings]
    direction = (totals[1] - totals[0]) / np.linalg.norm((totals[1] - totals[0]).astype(np.float64))
    mechanism = secure_mechanism(integers, _NUM_ROWS, budget)
    done = 0

    def sample(which, count):
        nonlocal done
        values = []
        for _ in range(count):
            with tempfile.TemporaryDirectory() as name:
                folder = pathlib.Path(name)
                np.save(folder / "rows.npy", databases[which])
                np.save(folder / "points.npy", points)
                words = ["release", f"{folder}/rows.npy", f"--points={folder}/points.npy", "--lower=-8", "--upper=8"]
                words += [f"--length={length!r}", f"--epsilon={budget.epsilon!r}", f"--delta={budget.delta!r}"]
                with contextlib.redirect_stdout(io.StringIO()):
                    status = cli.main([*words, f"--output={folder}/out"])
                if status:
                    raise RuntimeError("the command failed")
                coordinates = Measurement.load(folder / "out").noisy.coordinates
            values.append((coordinates / mechanism.grid - totals[0]) @ direction)
            done += 1
            progress(done, 2 * (runs + max(20, runs // _PILOT)))
        return np.asarray(values)

    found = lower_bound(sample, runs, _mu)
    share = _share(totals, mechanism.sensitivity / mechanism.grid)
    return found | {"measure": "mu", "claim": math.sqrt(2 * mechanism.rho), "share_of_diameter": share}


_BOOLS = Schema((Numeric("x", 0, 1, integer=True, nullable=True),))


def _frames() -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """Two DataFrames that differ in one cell, and so in the type of their column: bools, and objects."""
    cells = [True] * (_NUM_TABLE_ROWS - 1)
    return pandas.DataFrame({"x": [*cells, False]}), pandas.DataFrame({"x": [*cells, "n/a"]})


def _release_of_frames(budget: PrivacyBudget, runs: int, progress, *, old: bool = False):
    """``measure_table`` of neighbouring DataFrames, again and again; with the encoder before it, of what that read."""
    databases, runs = _frames(), max(40, runs)  # fewer could not refute anything
    if old:
        databases = [_BOOLS.decode(containers.old_encoder(frame, _BOOLS)) for frame in databases]
    done = 0

    def measure(which):
        return measure_table(databases[which], _BOOLS, budget=budget)

    ((_, private),) = measure(0).measured.items()
    totals = []
    for data in databases:
        codes = _BOOLS.encode(data) if old else containers.new_encoder(data, _BOOLS)
        embedding = integer_embedding(private.feature_map, codes.astype(np.float64))
        totals.append(embedding.total * private.mechanism.grid)
    direction = (totals[1] - totals[0]) / np.linalg.norm(totals[1] - totals[0])

    def sample(which, count):
        nonlocal done
        values = []
        for _ in range(count):
            ((_, found),) = measure(which).measured.items()
            values.append((found.coordinates - totals[0]) @ direction)
            done += 1
            progress(done, 2 * (runs + max(20, runs // _PILOT)))
        return np.asarray(values)

    found = lower_bound(sample, runs, _mu)
    share = _share(totals, private.mechanism.sensitivity)
    return found | {"measure": "mu", "claim": math.sqrt(2 * private.mechanism.rho), "share_of_diameter": share}


def _violations(num_cases: int, seed: int, progress, *, old: bool = False):
    """How many random cases show that a row changes the code of another one."""
    names = ("DataFrame of lists", "DataFrame of rows") if old else tuple(containers.CONTAINERS)
    encoder = containers.old_encoder if old else containers.new_encoder
    found = containers.num_violations(num_cases, seed, encoder=encoder, containers=names, progress=progress)
    number = found["violations"]
    return found | {"measure": "violations", "claim": 0, "lower_bound": number, "estimate": number, "runs": num_cases}


def run(config: AuditConfig) -> dict[str, Any]:
    """All attacks, kept in <output_dir>/audit.json as they come."""
    stages = common.Stages("audit")
    path = common.check_output_dir(config.output_dir) / "audit.json"
    settings = dataclasses.asdict(config) | {"output_dir": common.portable_path(config.output_dir)}
    cells = common.Cells(path, "audit", settings, ("mechanism", "map", "epsilon"))
    all_pairs, runs, seed = pairs(config.seed), config.num_runs, config.seed
    releases, num_cases = config.num_releases, config.num_cases

    def add(mechanism: str, name: str, epsilon: float, expected: bool, attack) -> None:
        if (mechanism, name, epsilon) in cells:
            return
        with stages.stage(f"{mechanism}, {name}, ε = {epsilon:g}") as progress:
            found = attack(progress)
        violated = found["lower_bound"] > found["claim"]
        cell = {"mechanism": mechanism, "map": name, "epsilon": float(epsilon)}
        cells.add(cell | {"should_be_violated": expected, "violated": violated} | found)

    for epsilon in config.epsilons:
        budget = PrivacyBudget(epsilon, config.delta)
        for name, pair in all_pairs.items():
            add("discrete Gaussian", name, epsilon, False, lambda p, x=pair, b=budget: _secure_gaussian(x, b, runs, p))
            add("discrete Laplace", name, epsilon, False, lambda p, x=pair, e=epsilon: _secure_laplace(x, e, runs, p))
            add(
                "simulated Gaussian",
                name,
                epsilon,
                False,
                lambda p, x=pair, b=budget: _simulated_gaussian(x, b, runs, p, seed),
            )
            add(
                "noise / √2 (broken)",
                name,
                epsilon,
                True,
                lambda p, x=pair, b=budget: _secure_gaussian(x, b, runs, p, factor=math.sqrt(0.5)),
            )
        add("unpaired features (broken)", "fourier", epsilon, True, lambda p, b=budget: _unpaired(b, runs, p, seed))
        add("release of a DataFrame", "table", epsilon, False, lambda p, b=budget: _release_of_frames(b, releases, p))
        add(
            "release, codes by type (broken)",
            "table",
            epsilon,
            True,
            lambda p, b=budget: _release_of_frames(b, releases, p, old=True),
        )
    add("codes of cells", "containers", 0, False, lambda p: _violations(num_cases, seed, p))
    add("codes by type (broken)", "containers", 0, True, lambda p: _violations(num_cases, seed, p, old=True))
    budget = PrivacyBudget(max(config.epsilons), config.delta)
    subspace = all_pairs["subspace"]
    add(
        "command kme-jax release",
        "subspace",
        budget.epsilon,
        False,
        lambda p: _whole_command(subspace, budget, releases, p),
    )
    return cells.result


def markdown(result: dict[str, Any]) -> str:
    """The results as a table for the README."""
    lines = [
        "| mechanism | map | ε | of the diameter | claim | lower bound | runs | claim refuted |",
        "|---|---|---|---|---|---|---|---|",
    ]
    symbols = {"mu": "μ", "epsilon": "ε"}
    for cell in result["cells"]:
        if cell["measure"] == "violations":
            lines.append(
                f"| {cell['mechanism']} | {cell['map']} | – | – | no other code changes | {cell['lower_bound']} do | "
                f"{cell['runs']} | {'yes' if cell['violated'] else 'no'} |"
            )
            continue
        symbol = symbols[cell["measure"]]
        lines.append(
            f"| {cell['mechanism']} | {cell['map']} | {cell['epsilon']:g} | {100 * cell['share_of_diameter']:.1f} % | "
            f"{symbol} = {cell['claim']:.4g} | {symbol} ≥ {cell['lower_bound']:.4g} | {cell['runs']} | "
            f"{'yes' if cell['violated'] else 'no'} |"
        )
    return "\n".join(lines)


def _main() -> None:
    config = common.config_from_flags(AuditConfig)
    config.validate()
    result = run(config)
    path = pathlib.Path(config.output_dir) / "audit.json"
    picture = plots.draw_audit(path, path.with_suffix(".png"))
    print(f"{markdown(result)}\nwrote {path} and {picture}")
    wrong = [cell for cell in result["cells"] if cell["violated"] != cell["should_be_violated"]]
    for cell in wrong:
        print(f"UNEXPECTED: {cell['mechanism']}, {cell['map']}, ε = {cell['epsilon']:g}")


if __name__ == "__main__":
    common.run_main(lambda: common.define_flags(AuditConfig), _main)
