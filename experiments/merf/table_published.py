"""DP-MERF for tables as in the authors' code: their embedding, noise, network and training.

The authors release the shares of the classes and the embedding [Fourier features of the numbers, categories/√m] of
every class, each with noise for a half of the budget. A network of two hidden layers is trained in full-embedding
steps. Numbers enter as they are in the file.

This is NOT private, whatever ε it claims. The length of the frequencies is the median of distances between private
rows. Adult and census have category codes as numbers in the embedding, whose norm the noise does not allow for.
Hyper-parameters were chosen on private rows and on test rows. ``FAULTS`` has the words of a record.

What differs from the authors' code: no rows of the largest class are left out, initial parameters are those of flax,
and a training that would take too long is cut (``Settings.cut``).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.merf.table_files import Layout
from kme_jax import FourierMap, Gaussian, PrivacyBudget
from kme_jax._numerics.precision import Progress, reproducible_jit
from kme_jax.generators.networks import MLP
from kme_jax.generators.nnx import nnx
from kme_jax.privacy.calibration import gaussian_noise_multiplier

_CODE = 10
_LEARNING_RATE = 1e-2
_STEPS_AT_ONCE = 50
_ROWS_AT_ONCE = 2048
_LEAST_SHARE = 1e-3  # in place of a noisy share below 0
_DISCARDED = 10  # training rows for the median

FAULTS = {
    "length": "the length of the frequencies is the median of distances between private rows, without noise",
    "choice": "hyper-parameters were chosen on private rows and on test rows",
    "codes": "category codes as numbers in the embedding have no bounded norm, so the noise is too small",
    "missing": "medians of private rows, without noise, replace missing numbers",
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Hyper-parameters of a data set: those of the paper's supplement, as a third party wrote them down.

    Attributes:
      num_steps: steps of Adam; an epoch has one step.
      batch_rate: rows of a step, as a share of the private rows.
      num_features: D, cosines and sines together.
      by_column: whether every column has a length of its own.
      codes: whether categories are numbers in the embedding, and not 0 or 1 (Adult and census).
    """

    num_steps: int
    batch_rate: float
    num_features: int
    by_column: bool = False
    codes: bool = False

    def cut(self, num_rows: int, limits: Limits) -> Sizes:
        """The sizes of a training: published ones within limits."""
        batch = max(2, min(round(self.batch_rate * num_rows), limits.batch_size))
        num_features = min(self.num_features, limits.num_features)
        return Sizes(max(1, min(self.num_steps, int(limits.work / (batch * num_features)))), batch, num_features)


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a training may take, so that it ends within minutes on two cores.

    Attributes:
      batch_size: largest number of rows of a step.
      num_features: largest D.
      work: largest number of features of all rows of all steps.
    """

    batch_size: int = 1000
    num_features: int = 10_000
    work: float = 1e10


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What a training took.

    Attributes:
      num_steps: steps of Adam.
      batch_size: rows of a step.
      num_features: D.
    """

    num_steps: int
    batch_size: int
    num_features: int


SETTINGS = {
    "adult": Settings(8000, 0.1, 1000, codes=True),
    "census": Settings(2000, 0.05, 5000, by_column=True, codes=True),
    "cervical": Settings(200, 0.1, 2000),
    "credit": Settings(4000, 0.1, 5000),
    "epileptic": Settings(6000, 0.01, 80_000),
    "isolet": Settings(4000, 0.1, 500),
    "covtype": Settings(6000, 0.05, 1000),
    "intrusion": Settings(10_000, 0.03, 2000),
}
_CENSUS_DISCARDED = 100


@dataclasses.dataclass(frozen=True)
class Raw:
    """How the authors see rows: numbers as in the file, then categories.

    Without ``codes``, a category of two values is 0 or 1, and any other is a number (protocols of intrusion). With
    ``codes``, each category is its code.

    Attributes:
      layout: of the rows.
      codes: see :class:`Settings`.
    """

    layout: Layout
    codes: bool

    @functools.cached_property
    def _columns(self) -> list[Any]:
        return [self.layout.schema.columns[j] for j in (*self.layout.numbers, *self.layout.coded)]

    @functools.cached_property
    def as_categories(self) -> np.ndarray:
        """Which columns are in the part of the categories, [d]."""
        first = len(self.layout.numbers)
        return np.asarray([k >= first and (self.codes or c.num_values == 2) for k, c in enumerate(self._columns)])

    def read(self, codes: np.ndarray) -> np.ndarray:
        """Numbers and categories, [n, d], for codes of the schema. Missing numbers are medians, missing answers are 0
        unless a missing category has a code of its own."""
        columns = []
        for column, k in zip(self._columns, (*self.layout.numbers, *self.layout.coded), strict=True):
            values = codes[:, k].astype(np.float64)
            missing = values == column.num_values
            if column.ordered:
                values = column.lower + (column.upper - column.lower) * values / (column.num_values - 1)
                values[missing] = np.median(values[~missing]) if not missing.all() else 0.0
            elif column.num_values == 2:
                values[missing] = 0
            columns.append(values)
        return np.stack(columns, axis=1)

    def written(self, values: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Codes of the schema [n, C], for numbers and categories [n, d] and labels [n]."""
        layout = self.layout
        result = np.empty((len(values), len(layout.schema.columns)), np.int64)
        for column, k, cells in zip(self._columns, (*layout.numbers, *layout.coded), values.T, strict=True):
            if column.ordered:
                unit = (cells.astype(np.float64) - column.lower) / (column.upper - column.lower)
                result[:, k] = np.rint(np.clip(unit, 0, 1) * (column.num_values - 1))
            else:
                result[:, k] = np.clip(np.rint(cells), 0, column.num_codes - 1)
        result[:, layout.schema.index(layout.target)] = labels
        return result


def lengths(rows: np.ndarray, by_column: bool) -> np.ndarray:
    """Medians of distances between rows [n, d]: of all columns together, or of each column, [d]. A median of 0 is 1."""
    first, second = np.triu_indices(len(rows), 1)
    differences = np.abs(rows[first] - rows[second])
    if not by_column:
        differences = np.sqrt(np.sum(np.square(differences), axis=1, keepdims=True))
    medians = np.median(differences, axis=0)
    return np.broadcast_to(np.where(medians == 0, 1.0, medians), rows.shape[1])


@reproducible_jit
def _features(fourier, numbers, categories):
    """[Fourier features of the numbers, categories/√m] of rows, [n, F]."""
    parts = [fourier(numbers)]
    if categories.shape[1]:
        parts.append(categories / math.sqrt(categories.shape[1]))
    return jnp.concatenate(parts, axis=1)


def embedding_sums(
    fourier: FourierMap, numbers: np.ndarray, categories: np.ndarray, labels: np.ndarray, num_labels: int
) -> np.ndarray:
    """Sums of the features over the rows of each class, [L, F]."""
    total = 0.0
    for start in range(0, len(labels), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        one_hot = np.eye(num_labels)[labels[part]]
        values = _features(fourier, numbers[part].astype(np.float32), categories[part].astype(np.float32))
        total = total + one_hot.T @ np.asarray(values, np.float64)
    return np.asarray(total)


def _relaxed(raw: jax.Array, heterogeneous: bool, num_numbers: int) -> tuple[jax.Array, jax.Array]:
    """Numbers and categories of outputs. Tables with categories have ReLU for numbers and the logistic function."""
    if not heterogeneous:
        return raw, raw[:, :0]
    return jax.nn.relu(raw[:, :num_numbers]), jax.nn.sigmoid(raw[:, num_numbers:])


@functools.partial(
    reproducible_jit, static_argnames=("graph", "num_steps", "batch_size", "heterogeneous", "num_numbers")
)
def _train(graph, state, key, first, target, shares, fourier, *, num_steps, batch_size, heterogeneous, num_numbers):
    """The state and the objective of each step, after ``num_steps`` steps."""
    optimiser = optax.adam(_LEARNING_RATE)

    def step(state, number):
        parameters, statistics, moments = state
        label_key, code_key = jax.random.split(jax.random.fold_in(key, number))
        labels = jax.random.categorical(label_key, jnp.log(shares), shape=(batch_size,))
        codes = jax.random.normal(code_key, (batch_size, _CODE))

        def loss(parameters):
            module = nnx.merge(graph, parameters, statistics, copy=True)
            raw = module(jnp.concatenate([codes, labels[:, None].astype(codes.dtype)], axis=1))
            values = _features(fourier, *_relaxed(raw, heterogeneous, num_numbers))
            weights = jax.nn.one_hot(labels, len(shares)) / shares[None, :]
            means = jnp.einsum("nl,nf->lf", weights, values) / batch_size
            return jnp.sum(jnp.square(target - means)), nnx.state(module, nnx.Not(nnx.Param))

        (value, statistics), gradient = jax.value_and_grad(loss, has_aux=True)(parameters)
        with jax.numpy_dtype_promotion("standard"):
            updates, moments = optimiser.update(gradient, moments, parameters)
        return (optax.apply_updates(parameters, updates), statistics, moments), value

    return jax.lax.scan(step, state, first + jnp.arange(num_steps))


def noise_multiplier(budget: PrivacyBudget) -> float:
    """Of each of the two measurements, which together are (ε, δ)-private: √2 times that of one."""
    return math.sqrt(2) * gaussian_noise_multiplier(budget)


def release(
    name: str,
    layout: Layout,
    private: np.ndarray,
    budget: PrivacyBudget,
    seed: int,
    num_rows: int,
    limits: Limits = Limits(),
    progress: Progress | None = None,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Codes of synthetic rows [num_rows, C], and entries of a record. NOT private, see above.

    Args:
      name: of the data set, one of ``SETTINGS``.
      layout: of its rows.
      private: codes of the private rows, [N, C].
      budget: (ε, δ) that are claimed.
      seed: of noise, frequencies, network and samples.
      num_rows: of the synthetic rows.
      limits: of the training.
      progress: called with (steps done, steps).
    """
    settings, rng = SETTINGS[name], np.random.default_rng(seed)
    raw = Raw(layout, settings.codes)
    values, labels = raw.read(private), private[:, layout.schema.index(layout.target)]
    is_category = raw.as_categories
    order = rng.permutation(len(values))
    num_discarded = min(_CENSUS_DISCARDED if settings.by_column else _DISCARDED, len(values) // 10)
    discarded, kept = order[:num_discarded], order[num_discarded:]
    numbers, categories = values[kept][:, ~is_category], values[kept][:, is_category]
    sizes = settings.cut(len(kept), limits)
    scales = _lengths(name, values[discarded][:, ~is_category], settings.by_column)
    frequencies = rng.normal(size=(sizes.num_features // 2, numbers.shape[1])) / scales
    fourier = FourierMap(Gaussian(0.5), (frequencies / (2 * math.pi)).astype(np.float32))  # lengths are in the turns
    sums = embedding_sums(fourier, numbers, categories, labels[kept], layout.num_labels)

    heterogeneous = categories.shape[1] > 0
    multiplier, size = noise_multiplier(budget), len(kept)
    counts = np.bincount(labels[kept], minlength=layout.num_labels)
    noisy = (counts + multiplier * math.sqrt(2) * rng.normal(size=counts.shape)) / size
    shares = np.where(noisy <= 0, _LEAST_SHARE, noisy)
    shares = shares / shares.sum()
    scale = multiplier * 2 * (math.sqrt(2) if heterogeneous else 1) / size
    target = (sums / size + scale * rng.normal(size=sums.shape)) / shares[:, None]

    d = values.shape[1]
    key, build_key = jax.random.split(jax.random.key(seed))
    module = MLP(widths=(4 * d, 2 * d), code=_CODE).build(1, d, nnx.Rngs(build_key))
    graph, parameters, statistics = nnx.split(module, nnx.Param, ...)
    state = parameters, statistics, optax.adam(_LEARNING_RATE).init(parameters)
    objective: list[float] = []
    single = functools.partial(jnp.asarray, dtype=jnp.float32)
    for first in range(0, sizes.num_steps, _STEPS_AT_ONCE):
        steps = min(_STEPS_AT_ONCE, sizes.num_steps - first)
        state, trace = _train(
            graph, state, key, first, single(target), single(shares), fourier, num_steps=steps,
            batch_size=sizes.batch_size, heterogeneous=heterogeneous, num_numbers=numbers.shape[1],
        )  # fmt: skip
        objective.append(float(jnp.mean(trace)))
        if progress:
            progress(first + steps, sizes.num_steps)
    chosen = rng.choice(len(shares), size=num_rows, p=shares)
    outputs = _sampled(graph, state, chosen, rng, heterogeneous, numbers.shape[1])
    written = np.empty((num_rows, d))
    written[:, ~is_category], written[:, is_category] = outputs[0], np.rint(outputs[1])
    faults = [FAULTS["length"], FAULTS["choice"]] + [FAULTS["codes"]] * settings.codes
    faults += [FAULTS["missing"]] * bool(layout.optional)
    facts = {
        "is_private": False,
        "faults": faults,
        "sizes": dataclasses.asdict(sizes),
        "published_sizes": {"num_steps": settings.num_steps, "batch_rate": settings.batch_rate,
                            "num_features": settings.num_features},
        "objective": {"first": objective[0], "last": objective[-1]},
    }  # fmt: skip
    return raw.written(written, chosen), facts


def _lengths(name: str, rows: np.ndarray, by_column: bool) -> np.ndarray:
    """Lengths of the columns, [d]. Credit has one for the principal components and one for the amount."""
    if name != "credit":
        return lengths(rows, by_column)
    return np.concatenate([lengths(rows[:, :-1], False), lengths(rows[:, -1:], False)])


def _sampled(graph, state, labels, rng, heterogeneous, num_numbers) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and categories between 0 and 1 of new rows with labels [n]."""
    module = nnx.merge(graph, state[0], state[1])
    module.eval()
    codes = rng.normal(size=(len(labels), _CODE))
    inputs = np.concatenate([codes, labels[:, None]], axis=1).astype(np.float32)
    parts = [
        _relaxed(module(jnp.asarray(inputs[start : start + _ROWS_AT_ONCE])), heterogeneous, num_numbers)
        for start in range(0, len(inputs), _ROWS_AT_ONCE)
    ]
    numbers, categories = (np.concatenate([np.asarray(part[k]) for part in parts]) for k in range(2))
    return numbers, categories
