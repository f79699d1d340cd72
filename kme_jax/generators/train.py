"""Step 3 by a generator ([H]): a network whose outputs have a mean embedding close to the noisy one.

With G a network, z a standard normal code and y a label, ψ(G(z, y), y) has a mean μ_G; training makes ‖μ̃ − μ_G‖² small
by stochastic gradients. What is seen of private rows is the noisy embedding, and noisy counts of the classes: anything
that follows is post-processing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import math
import re
import warnings
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.optimize
from flax import nnx

from kme_jax._numerics.precision import Progress, is_size, reproducible_jit
from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax._numerics.validation import check_array, require
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.feature_maps.fourier import FourierMap
from kme_jax.feature_maps.labelled import LabelledMap, MixedMap
from kme_jax.feature_maps.table import TableMap
from kme_jax.generators.checkpoints import Checkpoints
from kme_jax.generators.networks import Convolutional, Network
from kme_jax.privacy.mechanisms import Mechanism, NoisyEmbedding

Array = jax.Array

_STEPS_AT_ONCE = 50  # that an entry of the trace is the mean of
_STEPS_PER_CALL = 500  # in one scan on an accelerator
_ROWS_AT_ONCE = 2048
_BLOCKS_PER_CALL = 8  # of so many rows that are sampled, on an accelerator
_GROUPS, _ROWS_PER_BLOCK = 4, 512  # of rows that generators are judged by
_MOST_BYTES = {"cpu": 2**24, "other": 2**28}  # of features of the rows that are judged at a time
_MOST_VALUES = 4e8  # of features of these rows, if there are more than a few
_LEAST_STYLE = 1e-30  # share of a style that no row has
_POOR_FIT = 2.0  # ‖μ̃ − μ_G‖² in units of the noise's square, above which a generator is warned of
_LEAST_COVERED = 0.01  # part of the rows
_LEAST_SHARE = 1e-3  # of a class whose noisy count is about zero or below


@dataclasses.dataclass(frozen=True)
class Training:
    """How a generator is trained: public, and chosen without the private rows.

    Attributes:
      num_steps: of Adam, in a cycle.
      num_cycles: at most. After each, training ends if ‖μ̃ − μ_G‖² is no more than the square of the noise, which is
        what the private rows themselves have (the discrepancy principle of inverse problems, Morozov 1966): what more
        steps would fit is noise. If not, the learning rate starts again (warm restarts, Loshchilov & Hutter 2017). A
        network that cannot make such rows, or classes taken to be of one size that are not, may never get there.
      batch_size: rows of a step, about: as many of each style of each class, and two at least.
      learning_rate: at the start of a cycle.
      decay: what the learning rate is multiplied by after every ``decay_steps`` of a cycle; None for a cosine down to
        zero.
      decay_steps: see ``decay``.
      unbiased: whether ‖μ_G‖² is estimated by pairs of different rows, without bias but for what batch normalisation
        makes rows of a batch depend on each other. With bias ([H]), the objective asks for less spread than the data
        have: a batch's mean is longer than μ_G, by the more the smaller the batch.
      features_per_step: frequencies × 2 of a step, in turns, of a FourierMap; None for all.
    """

    num_steps: int = 1000
    num_cycles: int = 5
    batch_size: int = 500
    learning_rate: float = 5e-3
    decay: float | None = None
    decay_steps: int = 1
    unbiased: bool = True
    features_per_step: int | None = None

    def __post_init__(self):
        for name in ("num_steps", "num_cycles", "batch_size", "decay_steps"):
            value = getattr(self, name)
            if not is_size(value):
                raise ValueError(f"{name} must be a whole number and at least 1, got {value}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive and finite, got {self.learning_rate}")
        if self.decay is not None and not 0 < self.decay <= 1:
            raise ValueError(f"decay must be above 0 and at most 1, got {self.decay}")
        if self.features_per_step is not None and (self.features_per_step < 2 or self.features_per_step % 2):
            raise ValueError(f"features_per_step must be even and at least 2, got {self.features_per_step}")

    def learning_rate_at(self, step: int | jax.Array) -> jax.Array:
        """The learning rate at a step, counted from 0: every cycle begins as the first does."""
        if self.decay is None:
            within = optax.cosine_decay_schedule(self.learning_rate, self.num_steps)
        else:
            within = optax.exponential_decay(self.learning_rate, self.decay_steps, self.decay, staircase=True)
        with jax.numpy_dtype_promotion("standard"):  # optax divides whole numbers
            return within(step % self.num_steps)

    def optimiser(self) -> optax.GradientTransformation:
        """Adam with these learning rates."""
        return optax.adam(self.learning_rate_at)

    def pieces(self) -> list[int]:
        """Steps done after every piece of work, of which an entry of the trace is the mean: all there may be."""
        within = [*range(_STEPS_AT_ONCE, self.num_steps, _STEPS_AT_ONCE), self.num_steps]
        return [cycle * self.num_steps + steps for cycle in range(self.num_cycles) for steps in within]

    def calls(self, most: int) -> list[int]:
        """Steps done after every call of so many steps at most, or of one piece: those of a cycle are about equal."""
        within = -(-self.num_steps // _STEPS_AT_ONCE)
        num_calls = -(-within // max(1, most // _STEPS_AT_ONCE))
        size = -(-within // num_calls)
        return [end for k, end in enumerate(self.pieces()) if (k % within + 1) % size == 0 or end % self.num_steps == 0]


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """What a network's raw values stand for: relaxed rows, and rows that are written.

    Attributes:
      lower: public lower bounds of numeric columns, [d]; None where there are none, and raw values are numbers.
      upper: upper bounds, [d].
      dim: d, numeric columns.
      categories: codes of each categorical column, after the numeric ones.
      levels: into how many equal steps a number between its bounds is rounded when it is written; 0 for none.
    """

    lower: np.ndarray | None
    upper: np.ndarray | None
    dim: int = dataclasses.field(metadata={"static": True})
    categories: tuple[int, ...] = dataclasses.field(default=(), metadata={"static": True})
    levels: int = dataclasses.field(default=0, metadata={"static": True})

    @classmethod
    def create(
        cls, features: FeatureMap, bounds: tuple[np.ndarray | float, np.ndarray | float] | None, levels: int
    ) -> Rows:
        """For the rows of a feature map without labels.

        Raises:
          ValueError: a map that rows cannot be relaxed for; bounds that are not finite, or not in order; levels
            without bounds.
        """
        if isinstance(features, TableMap):
            raise ValueError("a generator needs features of numbers, got a TableMap")
        dim, categories = features.dim, ()
        if isinstance(features, MixedMap):
            dim, categories = features.numeric.dim, features.categories
        if bounds is None:
            if levels:
                raise ValueError("levels are those between bounds: give bounds")
            return cls(None, None, dim, categories)
        lower, upper = (np.asarray(bound, np.float32) for bound in bounds)
        if {lower.shape, upper.shape} - {(), (dim,)}:
            raise ValueError(f"bounds: expected a lower and an upper one for {dim} columns, or one each for all")
        lower, upper = np.broadcast_to(lower, dim), np.broadcast_to(upper, dim)
        if not (np.isfinite(upper - lower).all() and (lower < upper).all()):
            raise ValueError("bounds: every lower bound must be finite and below its upper bound")
        return cls(lower, upper, dim, categories, levels)

    def validate(self) -> None:
        """Refuses fields of rows that were read from a file.

        Raises:
          ValueError: they do not fit together.
        """
        sizes = all(size >= 1 for size in self.categories)
        require(self.dim >= 1 and sizes and 0 <= self.levels < 2**31, "rows: a number is out of range")
        require((self.lower is None) == (self.upper is None), "rows: expected both bounds, or none")
        require(self.lower is not None or self.levels == 0, "rows: levels are those between bounds")
        if self.lower is not None:
            check_array(self.lower, "lower", "f", (self.dim,))
            check_array(self.upper, "upper", "f", (self.dim,))
            require(bool((self.lower < self.upper).all()), "rows: a lower bound is not below its upper bound")

    @property
    def num_outputs(self) -> int:
        """Of the network."""
        return self.dim + sum(self.categories)

    def relaxed(self, raw: Array) -> Array:
        """Numbers, and probabilities of categories: [n, num_outputs]. Traceable."""
        numbers = raw[:, : self.dim]
        if self.lower is not None:
            numbers = self._between(jax.nn.sigmoid(numbers))
        columns = [numbers]
        for logits in self._logits(raw):
            columns.append(jax.nn.softmax(logits, axis=1))
        return jnp.concatenate(columns, axis=1)

    def written(self, key: Array, raw: Array) -> Array:
        """Rows with categories drawn and numbers rounded: [n, d + m]. Traceable."""
        numbers = self.relaxed(raw)[:, : self.dim]
        if self.levels:
            numbers = self._between(jnp.round(jax.nn.sigmoid(raw[:, : self.dim]) * self.levels) / self.levels)
        codes = [
            jax.random.categorical(jax.random.fold_in(key, j), logits)[:, None].astype(raw.dtype)
            for j, logits in enumerate(self._logits(raw))
        ]
        return jnp.concatenate([numbers, *codes], axis=1)

    def _between(self, unit: Array) -> Array:
        return self.lower[None, :] + (self.upper - self.lower)[None, :] * unit

    def _logits(self, raw: Array) -> list[Array]:
        stops = np.cumsum((self.dim, *self.categories))
        return [raw[:, start:stop] for start, stop in itertools.pairwise(stops)]


@storable()
@dataclasses.dataclass(frozen=True)
class GeneratorReport:
    """How well a generator fits.

    Attributes:
      objective: of training, by the step of ``steps``, mean of the steps before: the mean over classes of
        ‖μ̃_c/π_c − μ_{G,c}‖², so that each counts alike; without labels ‖μ̃ − μ_G‖².
      steps: numbers of steps.
      fit: ‖μ̃ − μ_G‖² (of μ̃ / ``covered_share`` where rows are left out) of the generator as it is sampled, with running
        averages in the place of those of a batch: from 8192 or more new rows of each class, without bias but for the
        shares of styles, which are the best for them.
      standard_error: of the fit.
      expected: what it is for the private rows themselves (but for shares of the classes): F σ², the noise's square,
        over ``covered_share``² where rows are left out.
      converged: whether the fit is no more than that but for chance (4 standard deviations of the noise's square and of
        the fit). A generator that is still above has not got all that the embedding says; one far below fits noise.
    """

    objective: tuple[float, ...]
    steps: tuple[int, ...]
    fit: float
    standard_error: float
    expected: float
    converged: bool

    def validate(self) -> None:
        """Refuses fields of a report that was read from a file.

        Raises:
          ValueError: numbers that are not finite; steps that are not those of the objective.
        """
        numbers = (*self.objective, self.fit, self.standard_error, self.expected)
        require(all(math.isfinite(number) for number in numbers), "report: a number is not finite")
        increasing = all(0 <= i < j for i, j in itertools.pairwise((0, *self.steps)))
        require(len(self.objective) == len(self.steps) and increasing, "report: expected the steps of the objective")
        require(self.standard_error >= 0 and self.expected >= 0, "report: an error is negative")


@dataclasses.dataclass(frozen=True, eq=False)
class Generator:
    """A trained generator: public.

    Attributes:
      network: what was built.
      rows: what its values stand for.
      shares: of the classes, [L]; None where rows have no label.
      state: parameters and statistics, by name.
      report: how well it fits.
      mechanisms: what was done to the private rows: of the embedding, and of the counts if there are any.
      measured: a digest of the noisy embedding it was trained on.
    """

    network: Network
    rows: Rows
    shares: np.ndarray | None
    state: dict[str, np.ndarray]
    report: GeneratorReport
    mechanisms: tuple[Mechanism, ...]
    measured: str

    def validate(self) -> None:
        """Refuses fields of a generator that was read from a file.

        Raises:
          ValueError: shares that are none; parameters that are not those of the network.
        """
        num_labels = 0
        if self.shares is not None:
            check_array(self.shares, "shares", "f", (None,))
            valid = bool((self.shares >= 0).all()) and abs(float(self.shares.sum()) - 1) < 1e-3
            require(valid, "shares: expected a probability vector")
            num_labels = len(self.shares)
        leaves = _parameters(self.network, self.rows.num_outputs, num_labels)
        require(leaves.keys() == self.state.keys(), "the parameters are not those of the network")
        for name, leaf in leaves.items():
            require(self.state[name].dtype == leaf.dtype, f"{name}: has the type {self.state[name].dtype}")
            check_array(self.state[name], name, "fiu", leaf.shape)
            require("var" not in name.split(".") or bool((self.state[name] >= 0).all()), f"{name}: is negative")
        require(bool(re.fullmatch("[0-9a-f]{64}", self.measured)), "measured: expected a digest")

    def sample(
        self,
        num_rows: int,
        *,
        seed: int = 0,
        labels: np.ndarray | Literal["balanced"] | None = None,
        noise: bool = True,
    ) -> np.ndarray:
        """Synthetic rows, float32 [num_rows, columns]; the label is the last column where there is one.

        Args:
          num_rows: how many.
          seed: of codes.
          labels: of the rows, [num_rows]; "balanced" for as many of each class (up to one); None for the classes'
            shares (systematic: each class has its share of the rows, up to one row), in random order.
          noise: False for rows without the independent noise that a network adds to each number (``SmoothImages``): the
            same rows otherwise, better to look at and worse to learn from. Other networks add none.

        Raises:
          ValueError: num_rows < 1; labels that are none.
        """
        if num_rows < 1:
            raise ValueError(f"num_rows must be at least 1, got {num_rows}")
        key = jax.random.key(seed)
        label_key, code_key = jax.random.split(key)
        labels = self._labels(label_key, num_rows, labels)
        num_labels = 0 if self.shares is None else len(self.shares)
        graph, parameters, statistics = _split(
            nnx.eval_shape(lambda: self.network.build(num_labels, self.rows.num_outputs, nnx.Rngs(0))),
            self.network,
            num_labels,
        )
        parameters, statistics = (_from_flat(tree, self.state) for tree in (parameters, statistics))
        found = []
        num_blocks = 1 if jax.default_backend() == "cpu" else _BLOCKS_PER_CALL
        at_once = num_blocks * _ROWS_AT_ONCE
        for start in range(0, num_rows, at_once):  # blocks of one shape; what is too much is cut off
            some = np.pad(labels[start : start + at_once], (0, max(0, start + at_once - num_rows)))
            made = _written(
                graph, self.network, self.rows, num_labels, parameters, statistics, code_key,
                start + _ROWS_AT_ONCE * np.arange(num_blocks, dtype=np.int32), some.reshape(num_blocks, -1),
                noise=noise,
            )  # fmt: skip
            found.append(np.asarray(made).reshape(at_once, -1)[: num_rows - start])
        rows = np.concatenate(found)
        return rows if self.shares is None else np.concatenate([rows, labels[:, None].astype(np.float32)], axis=1)

    def _labels(self, key: Array, num_rows: int, labels: Any) -> np.ndarray:
        if self.shares is None:
            if labels is not None:
                raise ValueError("labels: this generator has none")
            return np.zeros(num_rows, np.int32)
        if labels is None or isinstance(labels, str):
            if labels not in (None, "balanced"):
                raise ValueError(f'labels: expected an array, "balanced" or None, got "{labels}"')
            shares = self.shares if labels is None else np.full(len(self.shares), 1 / len(self.shares))
            chosen = np.searchsorted(np.cumsum(shares), (np.arange(num_rows) + 0.5) / num_rows)
            chosen = np.minimum(chosen, len(shares) - 1)
            return np.asarray(jax.random.permutation(key, chosen.astype(np.int32)))
        labels = np.asarray(labels)
        valid = labels.shape == (num_rows,) and labels.dtype.kind in "iu"
        if not valid or labels.min() < 0 or labels.max() >= len(self.shares):
            raise ValueError(f"labels: expected {num_rows} whole numbers from 0 to {len(self.shares) - 1}")
        return labels.astype(np.int32)


@functools.lru_cache(maxsize=8)
def _parameters(network: Network, num_outputs: int, num_labels: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Names, shapes and types of all parameters and statistics."""
    module = nnx.eval_shape(lambda: network.build(num_labels, num_outputs, nnx.Rngs(0)))
    _, *trees = _split(module, network, num_labels)
    leaves = [pair for tree in trees for pair in jax.tree_util.tree_flatten_with_path(tree)[0]]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _split(module: nnx.Module, network: Network, num_labels: int):
    """The module's graph; parameters: those of the network, and logits of the styles' shares, [max(L, 1), styles];
    and statistics."""
    graph, parameters, statistics = nnx.split(module, nnx.Param, ...)
    styles = jnp.zeros((max(num_labels, 1), max(network.styles, 1)))
    return graph, {"network": parameters, "styles": styles}, statistics


def _flat(*trees: Any) -> dict[str, np.ndarray]:
    found = {}
    for tree in trees:
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            found[jax.tree_util.keystr(path, simple=True, separator=".")] = np.asarray(leaf)
    return found


def _from_flat(tree: Any, state: dict[str, np.ndarray]) -> Any:
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in
             jax.tree_util.tree_flatten_with_path(tree)[0]]  # fmt: skip
    return jax.tree.unflatten(jax.tree.structure(tree), [state[name] for name in names])


def _inputs(
    key: Array, network: Network, rows: Rows, num_labels: int, labels: Array, styles: Array, noise: bool = True
) -> Array:
    """Normals (zeros after the code if there shall be no noise), and styles and labels one-hot, of rows with labels [n]
    and styles [n]."""
    parts = [jax.random.normal(key, (len(labels), network.num_normals(rows.num_outputs)))]
    if not noise:
        parts[0] = parts[0].at[:, network.code :].set(0.0)
    if network.styles:
        parts.append(jax.nn.one_hot(styles, network.styles))
    if num_labels:
        parts.append(jax.nn.one_hot(labels, num_labels))
    return jnp.concatenate(parts, axis=1)


@functools.partial(reproducible_jit, static_argnames=("graph", "network", "num_labels", "noise"))
def _written(graph, network, rows, num_labels, parameters, statistics, key, starts, labels, *, noise):
    """Rows of blocks that begin at rows with the numbers starts [b], with labels [b, n]: [b, n, columns]."""
    module = nnx.merge(graph, parameters["network"], statistics)
    module.eval()

    def block(some):
        start, labels = some
        code_key, style_key, row_key = jax.random.split(jax.random.fold_in(key, start), 3)
        styles = jax.random.categorical(style_key, parameters["styles"][labels])
        return rows.written(row_key, module(_inputs(code_key, network, rows, num_labels, labels, styles, noise)))

    return jax.lax.map(block, (starts, labels))


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class _Objective:
    """‖μ̃ − μ_G‖², class by class, for blocks of features.

    Attributes:
      features: φ, of rows without labels.
      turns: of a FourierMap, [blocks, J/2/blocks, d]; of another map nothing, and there is one block.
      targets: μ̃, [blocks, L, F/blocks].
      shares: of the classes, [L].
      weights: of the classes, [L].
    """

    features: FeatureMap
    turns: Array | None
    targets: Array
    shares: Array
    weights: Array
    unbiased: bool = dataclasses.field(metadata={"static": True})

    def __call__(self, relaxed: Array, styles: Array, block: Array) -> Array:
        """An estimate from relaxed rows [L S m, D]: m of each of S styles of each class in turn, with the shares of the
        styles in each class, [L, S].

        With μ_G = Σ_s p_s μ_s for a class and means m̂_s of m rows, E‖Σ_s p_s m̂_s‖² = ‖μ_G‖² + Σ_s p_s² v_s/m, and
        (mean ‖φ‖² − ‖m̂_s‖²)/(m − 1) is an unbiased estimate of v_s/m.
        """
        means, squares = self._means(relaxed, styles.shape, block)
        mean = jnp.einsum("ls,lsf->lf", styles, means, precision=jax.lax.Precision.HIGHEST)
        square = jnp.sum(jnp.square(mean), axis=1)
        if self.unbiased:
            size = relaxed.shape[0] // styles.size
            spread = squares - jnp.sum(jnp.square(means), axis=2)
            square = square - jnp.sum(jnp.square(styles) * spread, axis=1) / (size - 1)
        target = self.targets[block]
        inner, constant = jnp.sum(target * mean, axis=1), jnp.sum(jnp.square(target), axis=1)
        return jnp.sum(self.weights * (jnp.square(self.shares) * square - 2 * self.shares * inner + constant))

    def _means(self, relaxed: Array, groups: tuple[int, ...], block: Array) -> tuple[Array, Array | float]:
        """Means of φ over each of L S groups of rows that follow one another, [L, S, F/blocks], and of ‖φ‖², [L, S] or
        a number that holds for every group."""
        if self.turns is None:
            values = _relaxed(self.features, relaxed)
            values = values.reshape(*groups, -1, values.shape[1])
            return jnp.mean(values, axis=2), jnp.mean(jnp.sum(jnp.square(values), axis=3), axis=2)
        # ‖φ‖² is the same for all rows. So all gradients come by way of the means: the matrix products of the angles
        # and of their gradients have nothing but sines and cosines, of one evaluation, between them.
        features = FourierMap(self.features.kernel, self.turns[block])
        values = features(relaxed)
        return jnp.mean(values.reshape(*groups, -1, values.shape[1]), axis=2), self.features.kernel.diagonal_bound


def _objective(embedding: NoisyEmbedding, shares: np.ndarray, training: Training) -> tuple[_Objective, int]:
    """The objective, and the number of blocks."""
    labelled, features = _features(embedding.feature_map)
    num_labels = embedding.feature_map.num_labels if labelled else 1
    targets = np.asarray(embedding.coordinates, np.float64).reshape(num_labels, -1)
    turns, num_blocks = None, 1
    if isinstance(features, FourierMap):
        num_frequencies = len(features.turns)
        num_blocks = max(1, round(2 * num_frequencies / (training.features_per_step or 2 * num_frequencies)))
        size = num_frequencies // num_blocks  # a few frequencies at the end may be left out of every block
        turns = jnp.asarray(features.turns[: size * num_blocks].reshape(num_blocks, size, -1))
        halves = targets.reshape(num_labels, 2, num_frequencies)[:, :, : size * num_blocks]
        halves = halves.reshape(num_labels, 2, num_blocks, size).transpose(2, 0, 1, 3)
        targets = halves.reshape(num_blocks, num_labels, -1) * math.sqrt(num_frequencies / size)
    else:
        targets = targets[None]
    weights = 1 / (num_labels * np.square(shares))  # each class counts alike, and the objective is of size 1
    single = functools.partial(jnp.asarray, dtype=jnp.float32)
    made = _Objective(features, turns, single(targets), single(shares), single(weights), training.unbiased)
    return made, num_blocks


def _features(feature_map: FeatureMap) -> tuple[bool, FeatureMap]:
    """Whether rows have labels, and the map of rows without them."""
    labelled = isinstance(feature_map, LabelledMap)
    return labelled, feature_map.features if labelled else feature_map


@functools.partial(
    reproducible_jit,
    static_argnames=("graph", "network", "training", "num_labels", "num_blocks", "num_steps", "batch"),
    donate_argnames=("state",),
)
def _train(objective, rows, state, key, first, *, graph, network, training, num_labels, num_blocks, num_steps, batch):
    """Some steps: the state after them, and the objective of each, [num_steps]. The state that is given is used up."""
    optimiser, classes = training.optimiser(), len(objective.shares)
    num_styles = max(network.styles, 1)
    labels = jnp.repeat(jnp.arange(classes), batch)
    styles = jnp.tile(jnp.repeat(jnp.arange(num_styles), batch // num_styles), classes)

    def block_of(number):
        # Every block once in each round, in an order of its own.
        order = jax.random.permutation(jax.random.fold_in(key, -1 - number // num_blocks), num_blocks)
        return order[number % num_blocks]

    def step(carry, some):
        parameters, statistics, moments = carry
        code_key, block = some

        def loss(parameters):
            module = nnx.merge(graph, parameters["network"], statistics, copy=True)
            raw = module(_inputs(code_key, network, rows, num_labels, labels, styles))
            shares = jax.nn.softmax(parameters["styles"], axis=1)
            return objective(rows.relaxed(raw), shares, block), nnx.state(module, nnx.Not(nnx.Param))

        (value, statistics), gradient = jax.value_and_grad(loss, has_aux=True)(parameters)
        with jax.numpy_dtype_promotion("standard"):  # optax counts steps in int32
            updates, moments = optimiser.update(gradient, moments, parameters)
        return (optax.apply_updates(parameters, updates), statistics, moments), value

    # What does not depend on the state is computed for all steps at once, before the loop.
    numbers = first + jnp.arange(num_steps)
    steps = jax.vmap(lambda number: jax.random.fold_in(key, number))(numbers), jax.vmap(block_of)(numbers)
    if num_steps == 1:  # no loop at all, see _steps_per_call
        state, value = step(state, jax.tree.map(lambda values: values[0], steps))
        return state, value[None]
    return jax.lax.scan(step, state, steps)


def _steps_per_call(network: Network) -> int:
    """Steps in one scan. An accelerator waits for the host between two calls. XLA on CPUs runs convolutions in a loop
    several times slower than outside."""
    if jax.default_backend() != "cpu":
        return _STEPS_PER_CALL
    return 1 if isinstance(network, Convolutional) else _STEPS_AT_ONCE


@functools.partial(
    reproducible_jit, static_argnames=("graph", "network", "num_labels", "num_blocks", "size", "at_once")
)
def _style_means(features, rows, parameters, statistics, key, *, graph, network, num_labels, num_blocks, size, at_once):
    """Of each style of each class: means of φ over ``_GROUPS`` groups of new rows, so many blocks of a size in each:
    [groups, L, S, F]. As many blocks ``at_once`` are computed together."""
    module = nnx.merge(graph, parameters["network"], statistics)
    module.eval()
    num_classes, num_styles = parameters["styles"].shape
    total = _GROUPS * num_classes * num_styles * num_blocks

    def inputs(number):
        label, style = jnp.divmod(number // num_blocks % (num_classes * num_styles), num_styles)
        ones = jnp.ones(size, jnp.int32)
        code_key = jax.random.fold_in(key, number)
        return _inputs(code_key, network, rows, num_labels, label * ones, style * ones)

    def some_means(numbers):
        some = jax.vmap(inputs)(numbers)
        values = _relaxed(features, rows.relaxed(module(some.reshape(at_once * size, -1))))
        return jnp.mean(values.reshape(at_once, size, -1), axis=1)

    numbers = jnp.arange(-(-total // at_once) * at_once).reshape(-1, at_once)  # what is too much is cut off
    means = jax.lax.map(some_means, numbers).reshape(numbers.size, -1)[:total]
    return jnp.mean(means.reshape(_GROUPS, num_classes, num_styles, num_blocks, -1), axis=3)


def _blocks_at_once(size: int, num_features: int, total: int) -> int:
    """How many blocks of a size, of a total, are judged together: as many as have 4-byte features of ``_MOST_BYTES`` at
    most, in equal parts."""
    limit = _MOST_BYTES["cpu" if jax.default_backend() == "cpu" else "other"]
    most = max(1, limit // (4 * size * num_features))
    return -(-total // -(-total // most))


def _relaxed(features: FeatureMap, rows: Array) -> Array:
    """φ of relaxed rows: where they have categories, its mean over those."""
    return features.relaxed(rows) if isinstance(features, MixedMap) else features(rows)


def _simplex_least_squares(vectors: np.ndarray, target: np.ndarray) -> np.ndarray:
    """argmin ‖Σ_s p_s a_s − y‖² over probability vectors p, [S], for vectors a [S, F] and a target y [F].

    For probability vectors that is ‖Σ_s p_s (a_s − y)‖²; with (1 − Σ_s p_s)² added, the minimiser over all p ≥ 0 is a
    multiple of it. All that matters of the vectors is their inner products.
    """
    differences = vectors - target
    squares, axes = np.linalg.eigh(differences @ differences.T)
    system = np.concatenate([np.sqrt(np.maximum(squares, 0))[:, None] * axes.T, np.ones((1, len(vectors)))])
    found, _ = scipy.optimize.nnls(system, np.append(np.zeros(len(vectors)), 1.0))
    return found / found.sum()


def _judged(means: np.ndarray, coordinates: np.ndarray, shares: np.ndarray) -> tuple[np.ndarray, float, float]:
    """The best shares of the styles, [L, S]; ‖μ̃ − μ_G‖² with them; and its standard error.

    The residuals of two groups of rows are independent given the generator, and their inner product is an unbiased
    estimate; the standard error is the jackknife's over groups.

    Args:
      means: see ``_style_means``.
      coordinates: μ̃, [L, F].
      shares: of the classes, [L].
    """
    targets = coordinates / shares[:, None]
    styles = [_simplex_least_squares(some, mean) for some, mean in zip(means.mean(axis=0), targets, strict=True)]
    residuals = coordinates - shares[:, None] * np.einsum("ls,glsf->glf", styles, means)
    products = np.einsum("glf,hlf->gh", residuals, residuals)

    def fit(some: np.ndarray) -> float:
        return float((some.sum() - np.trace(some)) / (len(some) * (len(some) - 1)))

    size = len(products)
    without = [fit(np.delete(np.delete(products, k, axis=0), k, axis=1)) for k in range(size)]
    return np.asarray(styles), fit(products), math.sqrt((size - 1) * np.var(without))


def class_shares(counts: NoisyEmbedding, num_labels: int) -> np.ndarray:
    """Shares of the classes from noisy counts, [L]: those below a thousandth are set to that.

    Raises:
      ValueError: not the embedding of a table of one column with so many codes.
    """
    table = _counts(counts)
    if table.shape != (num_labels,):
        raise ValueError(f"counts: expected {num_labels} classes, got a table of shape {list(table.shape)}")
    shares = np.maximum(table, _LEAST_SHARE)
    return shares / shares.sum()


def covered_share(counts: NoisyEmbedding) -> float:
    """The part of the rows that is in any class, by noisy counts: 1, which is exact where every row is, unless they add
    up to less than noise makes likely (5 standard deviations). Post-processing.

    Args:
      counts: noisy shares of the classes, [L].

    Raises:
      ValueError: as :func:`class_shares`.
    """
    table = _counts(counts)
    total = float(np.sum(table))
    return max(total, _LEAST_COVERED) if total < 1 - 5 * math.sqrt(table.size * counts.mechanism.variance) else 1.0


def _counts(counts: NoisyEmbedding) -> np.ndarray:
    feature_map = counts.feature_map
    if not (isinstance(feature_map, TableMap) and len(feature_map.blocks) == 1):
        raise ValueError("counts: expected the embedding of a table of the label alone")
    return feature_map.marginals(counts.coordinates, 1)[0]


def train_generator(
    key: Array,
    embedding: NoisyEmbedding,
    network: Network,
    training: Training | None = None,
    *,
    counts: NoisyEmbedding | None = None,
    bounds: tuple[np.ndarray | float, np.ndarray | float] | None = None,
    levels: int = 0,
    checkpoint: str | None = None,
    progress: Progress | None = None,
) -> Generator:
    """A generator whose mean embedding is close to the noisy one ([H] equations 7, 16 and algorithm 1, step 5).

    Post-processing: nothing here sees a private row. At the end the shares of the styles, in which μ_G is linear, are
    replaced by the best ones for the styles as they are: a convex problem, and styles that found no place get nothing.

    The same key, embedding and arguments give the same generator, to the last bit and in every process, on the same
    kind of device with the same versions of the libraries. On a GPU XLA is kept from choosing algorithms by their
    timings; what that costs is small, as a step is bound by the number of its kernels, and compilation is faster. On
    another kind of device, or with another number of steps in a call, rounding differs, and training amplifies it.

    Angles of Fourier features and their gradients have the accuracy of float32. The layers of the network have the
    default precision of the device's matrix products, which on an NVIDIA GPU is TF32 (10 bits of mantissa).

    Args:
      key: a JAX random key, for parameters and codes.
      embedding: μ̃ of Fourier features, of mixed rows, or of either with labels (``LabelledMap``).
      network: e.g. ``networks.MLP()``.
      training: how; its defaults if None.
      counts: noisy shares of the classes, of a ``TableMap`` of the label. Classes then are as large as they say, and
        each counts alike ([H] equation 18, where every class's embedding is divided by its share). Without them all
        classes are taken to be of one size.
      bounds: public bounds of the numeric columns, between which numbers are made; for maps of rows scaled by
        ``Bounds``, (0, 1).
      levels: numbers are rounded to this many equal steps between the bounds when rows are written; 255 for pixels.
      checkpoint: a folder to keep the state in, from time to time; training goes on from there if it was interrupted.
      progress: called with (steps done, steps).

    Raises:
      ValueError: a map, network, counts or bounds that do not go together; a checkpoint of another training; a
        training that diverges.
    """
    training = Training() if training is None else training
    labelled, features = _features(embedding.feature_map)
    num_labels = embedding.feature_map.num_labels if labelled else 0
    rows = Rows.create(features, bounds, levels)
    if counts is not None and not labelled:
        raise ValueError("counts are of classes, and these rows have no label")
    shares, covered = np.full(max(num_labels, 1), 1 / max(num_labels, 1)), 1.0
    if counts is not None:
        shares, covered = class_shares(counts, num_labels), covered_share(counts)
    # Rows that are not covered have no part in the sum, but in N: of what is covered this is the mean.
    target = dataclasses.replace(embedding, coordinates=np.asarray(embedding.coordinates, np.float64) / covered)
    num_styles = max(network.styles, 1)
    batch = num_styles * max(2, round(training.batch_size / len(shares) / num_styles))
    objective, num_blocks = _objective(target, shares, training)
    objective = jax.device_put(objective)
    build_key, step_key, judge_key = jax.random.split(key, 3)
    module = network.build(num_labels, rows.num_outputs, nnx.Rngs(build_key))
    graph, parameters, statistics = _split(module, network, num_labels)
    state = parameters, statistics, training.optimiser().init(parameters)
    coordinates = target.coordinates.reshape(len(shares), -1)
    variance = embedding.mechanism.variance / covered**2
    expected = coordinates.size * variance

    def judged(key: Array, least: int, share: float) -> tuple[np.ndarray, float, float]:
        """See ``_judged``; from so many rows of each class that their variance is a share of the noise's, if that does
        not take too many."""
        wanted = min(np.sum(np.square(shares)) / (share * expected), _MOST_VALUES / coordinates.size)
        wanted = math.ceil(max(least, wanted) / _GROUPS / num_styles)
        num_blocks = -(-wanted // _ROWS_PER_BLOCK)
        size, total = -(-wanted // num_blocks), _GROUPS * len(shares) * num_styles * num_blocks
        means = _style_means(
            objective.features, rows, state[0], state[1], key, graph=graph, network=network, num_labels=num_labels,
            num_blocks=num_blocks, size=size, at_once=_blocks_at_once(size, features.num_features, total),
        )  # fmt: skip
        return _judged(np.asarray(means, np.float64), coordinates, shares)

    trace: list[float] = []
    done = 0
    keeper = None
    if checkpoint is not None:
        limits = [] if rows.lower is None else [rows.lower, rows.upper]
        public = (repr((network, training, rows.categories, levels)), key, target.coordinates, shares)
        keeper = Checkpoints(checkpoint, (*public, *jax.tree.leaves(features), *limits))
        done, trace, state = keeper.latest(state)
    run = functools.partial(
        _train, objective, rows, graph=graph, network=network, training=training, num_labels=num_labels,
        num_blocks=num_blocks, batch=batch,
    )  # fmt: skip
    at_once = _steps_per_call(network)
    pieces, kept = training.pieces(), done
    for end in training.calls(at_once):
        if end < kept:
            continue
        values = []
        while done < end:
            size = min(at_once, end - done)
            state, some = run(state, step_key, done, num_steps=size)
            values.append(some)
            done += size
        if values:
            found = np.concatenate(values)
            ends = [piece for piece in pieces if done - len(found) < piece <= done]
            trace += [float(np.mean(part)) for part in np.split(found, np.subtract(ends[:-1], done - len(found)))]
        if not np.isfinite(trace).all():
            raise ValueError(f"training: the objective is {trace[-1]} after {done} steps; lower the learning rate")
        ends_cycle = end % training.num_steps == 0
        if keeper is not None and end > kept:
            keeper.keep(done, trace, state, last=ends_cycle)
        last = end == pieces[-1]
        if ends_cycle and not last:
            _, fit, error = judged(jax.random.fold_in(judge_key, done), 2048, 1 / 50)
            last = fit + error <= expected
        if progress:
            progress(done, done if last else pieces[-1])
        if last:
            break
    found, fit, error = judged(judge_key, 8192, 1 / 200)
    parameters, statistics, _ = state
    parameters |= {"styles": np.log(np.maximum(found, _LEAST_STYLE)).astype(np.float32)}
    # The variance of the square of a Gaussian of variance v is 2 v², of a Laplace variable 5 v².
    spread = math.sqrt((2 if embedding.mechanism.noise == "gaussian" else 5) * coordinates.size) * variance
    report = GeneratorReport(
        tuple(trace),
        tuple(pieces[: len(trace)]),
        fit,
        error,
        expected,
        fit <= expected + 4 * math.hypot(error, spread),
    )
    if fit - 4 * math.hypot(error, spread) > _POOR_FIT * expected:
        with contextlib.suppress(UserWarning):  # what was trained is not lost where warnings are made errors
            warnings.warn(
                f"the generator does not fit: ‖μ̃ − μ_G‖² = {fit:.3g} after {done} steps, and the noise's square is "
                f"{expected:.3g}. More cycles or steps, a larger network, or counts of the classes may help",
                stacklevel=2,
            )
    mechanisms = tuple(measured.mechanism for measured in (embedding, counts) if measured is not None)
    labels = shares if labelled else None
    return Generator(network, rows, labels, _flat(parameters, statistics), report, mechanisms, digest(embedding))


def digest(embedding: NoisyEmbedding) -> str:
    """Of a noisy embedding: by which one knows it again."""
    return hashlib.sha256(np.ascontiguousarray(embedding.coordinates, np.float64).tobytes()).hexdigest()
