"""Step 3 by a generator ([H]): a network whose outputs have a mean embedding close to the noisy embedding.

Let G be a network, z a standard normal latent code and y a label. Then ψ(G(z, y), y) has a mean μ_G. Training minimises
‖μ̃ − μ_G‖² by stochastic gradients. It sees the noisy embedding and noisy counts of the classes, and no private row. So
it is post-processing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import math
import os
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Float32, Int, Int32, PRNGKeyArray, Real, Shaped

from kme_jax._numerics import html
from kme_jax._numerics.precision import MAX_SEED, Progress, is_size, reproducible_jit
from kme_jax._numerics.progress import shows_progress
from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax._numerics.short_repr import in_full, short_repr
from kme_jax._numerics.validation import check_array, require
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.feature_maps.fourier import FourierMap
from kme_jax.feature_maps.labelled import LabelledMap, MixedMap
from kme_jax.feature_maps.subspace import SubspaceMap
from kme_jax.feature_maps.table import TableMap
from kme_jax.feature_maps.transformed import TransformedMap
from kme_jax.feature_maps.transforms import Transform
from kme_jax.generators.checkpoints import Checkpoints
from kme_jax.generators.networks import MOST_MEMBERS, Convolutional, Network, Pool, check_module
from kme_jax.generators.nnx import nnx
from kme_jax.generators.rare import ClassEmbeddings, Prior, Seen, are_counted, num_prior_rows
from kme_jax.privacy.budget import check_integer, check_number
from kme_jax.privacy.mechanisms import NOT_PRIVATE, Mechanism, NoisyEmbedding, noise_of

Array = jax.Array

_STEPS_AT_ONCE = 50  # steps in a piece of work. An entry of the trace is the mean over one piece.
_ROWS_AT_ONCE = 2048
_BLOCKS_PER_CALL = 8  # blocks of _ROWS_AT_ONCE rows that are sampled in one call on an accelerator
_GROUPS, _ROWS_PER_BLOCK = 4, 512  # of the rows from which the fit of a generator is estimated
_MOST_BYTES = {"cpu": 2**24, "other": 2**28}  # of the features of such rows that are in memory at a time
_MOST_VALUES = 4e8  # limit of the number of features of such rows, unless there are only a few rows
_LEAST_STYLE = 1e-30  # share of a style that no row has
_POOR_FIT = 2.0  # ‖μ̃ − μ_G‖² above which a warning is given, in units of the square of the noise
_EXAMPLES = {"network": "MLP()", "training": "Training()"}  # of arguments
_LEAST_VISIBLE = 0.5  # visibility of a class that is not below the noise
_LEAST_COVERED = 0.01  # smallest share of covered rows
_MOST_ROWS = 10**9  # of a sample
_MOST_LEVELS = 2**31 - 1
_LEAST_SHARE = 1e-3  # of a class whose noisy count is near or below zero
_NETWORK, _STYLES = "network.", "styles"  # names of parameters: the prefix of those of the network, and the others


@short_repr
@dataclasses.dataclass(frozen=True)
class Training:
    """Configuration of the training of a generator. It is public, and must be chosen without the private rows.

    Attributes:
      num_steps: steps of Adam in a cycle.
      num_cycles: largest number of cycles. Training ends after a cycle if ‖μ̃ − μ_G‖² is at most the square of the
        noise. This is the value for the private rows themselves (the discrepancy principle of inverse problems,
        Morozov 1966), so more steps would fit noise. Otherwise the learning rate starts again (warm restarts,
        Loshchilov & Hutter 2017). The condition may never hold, for example if the network cannot represent the rows,
        or if classes are taken to be equally frequent and are not.
      batch_size: approximate number of rows of a step. Every style of every class has the same number, at least two.
      learning_rate: at the start of a cycle.
      decay: factor of the learning rate after every ``decay_steps`` steps of a cycle; None for a cosine schedule that
        ends at zero.
      decay_steps: see ``decay``.
      unbiased: whether ‖μ_G‖² is estimated from pairs of different rows. The estimate is then unbiased, except that
        batch normalisation makes the rows of a batch depend on each other. The biased estimate ([H]) is larger: the
        mean of a batch is longer than μ_G, the more so the smaller the batch. Generated rows then vary less than the
        private rows.
      features_per_step: number of features in a step, two for each frequency. It is for a FourierMap of rows or of
        transformed rows, whose blocks of frequencies take turns. None for all features.
      borrow: whether rare classes borrow from the others, see :func:`train_generator`.
      num_generators: number of generators that are trained on the same noisy embedding, one after another, each from
        random parameters of its own. They become one generator, which mixes their rows in equal parts. What a single
        training adds by chance averages out, so classifiers often learn a little more from such rows. Training takes
        this many times as long.

    Examples:
      >>> from kme_jax.generators import Training
      >>> training = Training(num_steps=500, num_cycles=2)
      >>> round(float(training.learning_rate_at(0)), 4), round(float(training.learning_rate_at(250)), 4)
      (0.005, 0.0025)
    """

    num_steps: int = 1000
    num_cycles: int = 5
    batch_size: int = 500
    learning_rate: float = 5e-3
    decay: float | None = None
    decay_steps: int = 1
    unbiased: bool = True
    features_per_step: int | None = None
    borrow: bool = True
    num_generators: int = 1

    def __post_init__(self):
        for name in ("num_steps", "num_cycles", "batch_size", "decay_steps", "num_generators"):
            value = getattr(self, name)
            if not is_size(value):
                raise ValueError(f"{name} must be a whole number and at least 1, got {value}")
        if self.num_generators > MOST_MEMBERS:
            raise ValueError(f"num_generators must be at most {MOST_MEMBERS}, got {self.num_generators}")
        if not 0 < check_number("learning_rate", self.learning_rate) < math.inf:
            raise ValueError(f"learning_rate must be positive and finite, got {self.learning_rate}")
        if self.decay is not None and not 0 < check_number("decay", self.decay) <= 1:
            raise ValueError(f"decay must be above 0 and at most 1, got {self.decay}")
        if self.features_per_step is not None and (not is_size(self.features_per_step) or self.features_per_step % 2):
            raise ValueError(f"features_per_step must be even and at least 2, got {self.features_per_step}")

    def learning_rate_at(self, step: int | Int[Array, ""]) -> Float[Array, ""]:
        """The learning rate at a step, counted from 0 over all cycles."""
        if self.decay is None:
            within = optax.cosine_decay_schedule(self.learning_rate, self.num_steps)
        else:
            within = optax.exponential_decay(self.learning_rate, self.decay_steps, self.decay, staircase=True)
        with jax.numpy_dtype_promotion("standard"):  # optax divides whole numbers
            return cast(Array, within(step % self.num_steps))

    def optimiser(self) -> optax.GradientTransformation:
        """Adam with the learning rates of :meth:`learning_rate_at`."""
        return optax.adam(cast(optax.Schedule, self.learning_rate_at))

    def pieces(self) -> list[int]:
        """Numbers of steps done after each piece of work of all cycles. Each piece has an entry in the trace."""
        within = [*range(_STEPS_AT_ONCE, self.num_steps, _STEPS_AT_ONCE), self.num_steps]
        return [cycle * self.num_steps + steps for cycle in range(self.num_cycles) for steps in within]

    def calls(self, most: int) -> list[int]:
        """Numbers of steps done after each call. A call has at most ``most`` steps, or is one piece of work.

        The calls of a cycle have about equal numbers of steps.
        """
        within = -(-self.num_steps // _STEPS_AT_ONCE)
        num_calls = -(-within // max(1, most // _STEPS_AT_ONCE))
        size = -(-within // num_calls)
        return [end for k, end in enumerate(self.pieces()) if (k % within + 1) % size == 0 or end % self.num_steps == 0]


@short_repr
@dataclasses.dataclass(frozen=True)
class CallSettings:
    """How a training is cut into calls. It changes results by rounding alone.

    Attributes:
      steps: number of steps in one call; None for what is fastest on the device.
      seconds_between_checkpoints: smallest time between two checkpoints, in seconds.
    """

    steps: int | None = None
    seconds_between_checkpoints: float = 20.0

    def steps_of(self, network: Network) -> int:
        """Number of steps in one call.

        An accelerator waits for the host between two calls, so a call has many steps. XLA on CPUs runs convolutions
        several times slower in a loop than outside, so a call has one step.
        """
        if self.steps is not None:
            return self.steps
        if jax.default_backend() != "cpu":
            return 500
        return 1 if isinstance(network, Convolutional) else _STEPS_AT_ONCE


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """The meaning of a network's raw values, as relaxed rows and as synthetic rows.

    A relaxed row has probabilities in place of categories. A synthetic row has categories.

    Attributes:
      lower: public lower bounds of the numeric columns, [d]; None if raw values are the numbers.
      upper: public upper bounds, [d]; None if ``lower`` is.
      dim: d, the number of numeric columns.
      categories: number of category codes of each categorical column. These columns follow the numeric ones.
      levels: number of equal steps between the bounds, to which numbers of synthetic rows are rounded; 0 for no
        rounding.
    """

    lower: Float[np.ndarray, "d"] | None
    upper: Float[np.ndarray, "d"] | None
    dim: int = dataclasses.field(metadata={"static": True})
    categories: tuple[int, ...] = dataclasses.field(default=(), metadata={"static": True})
    levels: int = dataclasses.field(default=0, metadata={"static": True})

    @classmethod
    def create(
        cls,
        features: FeatureMap,
        bounds: tuple[float | Real[np.ndarray, "d"], float | Real[np.ndarray, "d"]] | None,
        levels: int,
    ) -> Rows:
        """The rows of a feature map without labels.

        Args:
          features: the feature map.
          bounds: lower and upper bounds, [d] each, or one number for all columns each; None for none.
          levels: see the attribute.

        Raises:
          ValueError: this is no feature map, the map cannot take relaxed rows, bounds are not finite or not in order,
            or levels are no whole number, or are given without bounds.
        """
        if not isinstance(features, FeatureMap):
            name = type(features).__name__
            raise ValueError(f"features: expected a feature map, such as a FourierMap or a LabelledMap, got {name}")
        levels = check_integer("levels", levels, 0, _MOST_LEVELS)
        if isinstance(features.numeric if isinstance(features, MixedMap) else features, TableMap):
            raise ValueError("a generator needs features of numbers, got a TableMap: release_table releases tables")
        if not features.has_derivative:
            name = type(features).__name__
            raise ValueError(f"a generator needs features with a derivative, got a {name}: use a FourierMap")
        if isinstance(features, SubspaceMap):
            raise ValueError("a generator needs features in float32, and a SubspaceMap is in float64: use a FourierMap")
        dim, categories = features.dim, ()
        if isinstance(features, MixedMap):
            dim, categories = features.numeric.dim, features.categories
        if bounds is None:
            if levels:
                raise ValueError("levels are those between bounds: give bounds")
            return cls(None, None, dim, categories)
        try:
            lower, upper = (np.asarray(bound, np.float32) for bound in (() if isinstance(bounds, str) else bounds))
        except (TypeError, ValueError):
            raise ValueError(
                f"bounds: expected a lower and an upper bound, such as (0, 1), got {bounds!r:.50}"
            ) from None
        if {lower.shape, upper.shape} - {(), (dim,)}:
            raise ValueError(f"bounds: expected a lower and an upper one for {dim} columns, or one each for all")
        lower, upper = np.broadcast_to(lower, dim), np.broadcast_to(upper, dim)
        if not (np.isfinite(upper - lower).all() and (lower < upper).all()):
            raise ValueError("bounds: every lower bound must be finite and below its upper bound")
        return cls(lower, upper, dim, categories, levels)

    def validate(self) -> None:
        """Refuses invalid fields that were read from a file.

        Raises:
          ValueError: the fields do not fit together.
        """
        sizes = all(size >= 1 for size in self.categories)
        require(self.dim >= 1 and sizes and 0 <= self.levels <= _MOST_LEVELS, "rows: a number is out of range")
        require((self.lower is None) == (self.upper is None), "rows: expected both bounds, or none")
        require(self.lower is not None or self.levels == 0, "rows: levels are those between bounds")
        if self.lower is not None and self.upper is not None:
            check_array(self.lower, "lower", "f", (self.dim,))
            check_array(self.upper, "upper", "f", (self.dim,))
            require(bool((self.lower < self.upper).all()), "rows: a lower bound is not below its upper bound")

    @property
    def num_outputs(self) -> int:
        """D, the number of outputs of the network."""
        return self.dim + sum(self.categories)

    def relaxed(self, raw: Float[Array, "n outputs"]) -> Float[Array, "n outputs"]:
        """Relaxed rows of raw values [n, D]: numbers, then probabilities of categories, [n, D]. Traceable."""
        numbers = raw[:, : self.dim]
        if self.lower is not None:
            numbers = self._between(jax.nn.sigmoid(numbers))
        columns = [numbers]
        for logits in self._logits(raw):
            columns.append(jax.nn.softmax(logits, axis=1))
        return jnp.concatenate(columns, axis=1)

    def written(self, key: PRNGKeyArray, raw: Float[Array, "n outputs"]) -> Float[Array, "n columns"]:
        """Synthetic rows of raw values [n, D]: numbers, rounded, then drawn category codes, [n, d + m]. Traceable."""
        numbers = self.relaxed(raw)[:, : self.dim]
        if self.levels:
            numbers = self._between(jnp.round(jax.nn.sigmoid(raw[:, : self.dim]) * self.levels) / self.levels)
        codes = [
            jax.random.categorical(jax.random.fold_in(key, j), logits)[:, None].astype(raw.dtype)
            for j, logits in enumerate(self._logits(raw))
        ]
        return jnp.concatenate([numbers, *codes], axis=1)

    def _between(self, unit: Array) -> Array:
        lower, upper = cast(Array, self.lower), cast(Array, self.upper)  # leaves of a pytree that is traced
        return lower[None, :] + (upper - lower)[None, :] * unit

    def _logits(self, raw: Array) -> list[Array]:
        stops = np.cumsum((self.dim, *self.categories))
        return [raw[:, start:stop] for start, stop in itertools.pairwise(stops)]


@storable(added_fields=("visibility",))
@dataclasses.dataclass(frozen=True)
class GeneratorReport:
    """The fit of a generator.

    Attributes:
      objective: of training. Each entry is the mean over the steps since the entry before. It is the mean over classes
        of ‖μ̃_c/π_c − μ_{G,c}‖², so that classes count equally, or without labels ‖μ̃ − μ_G‖².
      steps: number of steps at each entry of ``objective``.
      fit: ‖μ̃ − μ_G‖² of the trained generator, in the mode in which it is sampled (batch normalisation with running
        averages). If rows are not covered, μ̃ is divided by ``covered_share``. The value is estimated from at least
        8192 new rows of each class. It is unbiased, except that the shares of styles are the best for these rows.
      standard_error: of ``fit``.
      expected: the expected ‖μ̃ − μ_X‖² of the private rows themselves, apart from the shares of the classes. It is
        F σ², the square of the noise, over ``covered_share``² if rows are not covered.
      converged: whether ``fit`` is at most ``expected`` plus 4 standard deviations (of the square of the noise and of
        the fit). A larger fit means that the generator misses information of the embedding. A much smaller fit means
        that it fits noise.
      visibility: for each class, the share from 0 to 1 of what tells it apart that its noise lets through, as far as
        the other classes and the noise say. It is 0 if the noisy count of the class is within 5 standard deviations of
        0. It is empty without labels, with one class, and for a generator of an earlier version. It is post-processing.
    """

    objective: tuple[float, ...]
    steps: tuple[int, ...]
    fit: float
    standard_error: float
    expected: float
    converged: bool
    visibility: tuple[float, ...] = ()

    @property
    def below_noise(self) -> tuple[int, ...]:
        """The classes that are below the noise: their visibility is less than a half.

        Synthetic rows of such a class mostly show what all classes share.
        """
        return tuple(label for label, value in enumerate(self.visibility) if value < _LEAST_VISIBLE)

    def _repr_html_(self) -> str:
        fit = f"{html.number(self.fit)} ± {html.number(self.standard_error)}, and {html.number(self.expected)} expected"
        steps = f"{self.steps[-1] if self.steps else 0} steps"
        facts = [("trained", f"{steps}: {html.converged(self.converged)}"), ("squared distance", fit)]
        if self.below_noise:
            facts.append(("classes below the noise", ", ".join(map(str, self.below_noise))))
        return html.card("GeneratorReport", facts, html.trace(np.asarray(self.objective), "objective"))

    def validate(self) -> None:
        """Refuses invalid fields of a report that was read from a file.

        Raises:
          ValueError: a number is not finite, or steps and objective do not match.
        """
        numbers = (*self.objective, self.fit, self.standard_error, self.expected)
        require(all(math.isfinite(number) for number in numbers), "report: a number is not finite")
        increasing = all(0 <= i < j for i, j in itertools.pairwise((0, *self.steps)))
        require(len(self.objective) == len(self.steps) and increasing, "report: expected the steps of the objective")
        require(self.standard_error >= 0 and self.expected >= 0, "report: an error is negative")
        require(all(0 <= value <= 1 for value in self.visibility), "report: a visibility is not from 0 to 1")


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class Generator:
    """A trained generator. Public.

    Attributes:
      network: description of the network.
      rows: the meaning of its outputs.
      shares: of the classes, [L]; None if rows have no label.
      state: parameters and statistics of the network, by name.
      report: the fit.
      mechanisms: of the noisy embedding, and of the noisy counts if there are any.
      measured: digest of the noisy embedding that it was trained on.
    """

    network: Network
    rows: Rows
    shares: Float[np.ndarray, "classes"] | None
    state: dict[str, Shaped[np.ndarray, "..."]]
    report: GeneratorReport
    mechanisms: tuple[Mechanism, ...]
    measured: str

    def _repr_html_(self) -> str:
        facts = [("network", repr(self.network))]
        for mechanism in self.mechanisms[:1]:
            facts += mechanism.facts[1:]  # the budget is that of all measurements together, see ``GeneratorRelease``
        warning = "" if all(mechanism.secure for mechanism in self.mechanisms) else NOT_PRIVATE
        return html.card("Generator", facts, self.report._repr_html_(), warning=warning)

    def validate(self) -> None:
        """Refuses invalid fields of a generator that was read from a file.

        Raises:
          ValueError: the shares are invalid, or the parameters do not fit the network.
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
        labels: Int[np.ndarray, "n"] | Literal["balanced"] | None = None,
        noise: bool = True,
    ) -> Float32[np.ndarray, "n columns"]:
        """Synthetic rows, float32 [num_rows, columns]. The label, if there is one, is the last column.

        Args:
          num_rows: number of rows.
          seed: of the latent codes, from 0 to 2³² − 1.
          labels: of the rows, [num_rows]. "balanced" for equal numbers of rows of each class, up to one row. None for
            the classes' shares, up to one row. In the last two cases the order is random.
          noise: whether to add the independent noise of ``SmoothImages`` to each number. Rows without it are the same
            otherwise. They are better to look at and worse to learn from. Other networks add no noise.

        Raises:
          ValueError: num_rows is no whole number from 1 on, the seed is no whole number or out of range, or invalid
            labels.
        """
        num_rows = check_integer("num_rows", num_rows, 1, _MOST_ROWS)
        key = jax.random.key(check_integer("seed", seed, 0, MAX_SEED))
        label_key, code_key = jax.random.split(key)
        labels = self._labels(label_key, num_rows, labels)
        num_labels = 0 if self.shares is None else len(self.shares)
        graph, parameters, statistics = _split(
            nnx.eval_shape(lambda: self.network.build(num_labels, self.rows.num_outputs, nnx.Rngs(0))),
            self.network,
            num_labels,
        )
        parameters, statistics = (_from_flat(tree, self.state) for tree in (parameters, statistics))
        batches = []
        num_blocks = 1 if jax.default_backend() == "cpu" else _BLOCKS_PER_CALL
        at_once = num_blocks * _ROWS_AT_ONCE
        for start in range(0, num_rows, at_once):  # all blocks have one shape; surplus rows are cut off
            labels_of_blocks = np.pad(labels[start : start + at_once], (0, max(0, start + at_once - num_rows)))
            batch = _written(
                graph, self.network, self.rows, num_labels, parameters, statistics, code_key,
                start + _ROWS_AT_ONCE * np.arange(num_blocks, dtype=np.int32), labels_of_blocks.reshape(num_blocks, -1),
                noise=noise,
            )  # fmt: skip
            batches.append(np.asarray(batch).reshape(at_once, -1)[: num_rows - start])
        rows = np.concatenate(batches)
        return rows if self.shares is None else np.concatenate([rows, labels[:, None].astype(np.float32)], axis=1)

    def _labels(self, key: PRNGKeyArray, num_rows: int, labels: Any) -> Int32[np.ndarray, "n"]:
        if self.shares is None:
            if labels is not None:
                raise ValueError("labels: this generator has none; leave them out")
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
    """Shapes and types of all parameters and statistics, by name."""
    module = nnx.eval_shape(lambda: network.build(num_labels, num_outputs, nnx.Rngs(0)))
    _, *trees = _split(module, network, num_labels)
    leaves = [pair for tree in trees for pair in jax.tree_util.tree_flatten_with_path(tree)[0]]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _split(module: nnx.Module, network: Network, num_labels: int):
    """The graph, the parameters and the statistics of a module.

    Parameters are those of the network, and logits of the shares of styles, [max(L, 1), styles].
    """
    graph, parameters, statistics = nnx.split(module, nnx.Param, ...)
    styles = jnp.zeros((max(num_labels, 1), max(network.styles, 1)))
    return graph, {"network": parameters, "styles": styles}, statistics


def _flat(*trees: Any) -> dict[str, Shaped[np.ndarray, "..."]]:
    arrays = {}
    for tree in trees:
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            arrays[jax.tree_util.keystr(path, simple=True, separator=".")] = np.asarray(leaf)
    return arrays


def _from_flat(tree: Any, state: dict[str, Shaped[np.ndarray, "..."]]) -> Any:
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in
             jax.tree_util.tree_flatten_with_path(tree)[0]]  # fmt: skip
    return jax.tree.unflatten(jax.tree.structure(tree), [state[name] for name in names])


def _inputs(
    key: PRNGKeyArray,
    network: Network,
    rows: Rows,
    num_labels: int,
    labels: Int[Array, "n"],
    styles: Int[Array, "n"],
    noise: bool = True,
) -> Float[Array, "n inputs"]:
    """Inputs of the network for labels [n] and styles [n]: standard normals, then one-hot styles and labels.

    Without noise, the normals after the latent code are zeros.
    """
    inputs = [jax.random.normal(key, (len(labels), network.num_normals(rows.num_outputs)))]
    if not noise:
        inputs[0] = inputs[0].at[:, network.code :].set(0.0)
    if network.styles:
        inputs.append(jax.nn.one_hot(styles, network.styles))
    if num_labels:
        inputs.append(jax.nn.one_hot(labels, num_labels))
    return jnp.concatenate(inputs, axis=1)


@functools.partial(reproducible_jit, static_argnames=("graph", "network", "num_labels", "noise"))
def _written(graph, network, rows, num_labels, parameters, statistics, key, starts, labels, *, noise):
    """Synthetic rows [b, n, columns] with labels [b, n]. The first rows of the blocks have the numbers starts [b]."""
    module = nnx.merge(graph, parameters["network"], statistics)
    module.eval()

    def block(start_and_labels):
        start, labels = start_and_labels
        code_key, style_key, row_key = jax.random.split(jax.random.fold_in(key, start), 3)
        styles = jax.random.categorical(style_key, parameters["styles"][labels])
        return rows.written(row_key, module(_inputs(code_key, network, rows, num_labels, labels, styles, noise)))

    return jax.lax.map(block, (starts, labels))


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Objective:
    """The training objective: a weighted sum over classes of ‖μ̃_c − μ_{G,c}‖², for one block of features at a time.

    Attributes:
      features: φ, the map of rows without labels.
      turns: frequencies of a FourierMap, [blocks, J/2/blocks, d]; None for another map, which has one block.
      targets: μ̃, [blocks, L, F/blocks].
      shares: of the classes, [L].
      weights: of the classes in the objective, [L].
      unbiased: see :class:`Training`.
      seen: further terms, of the directions in which rare classes are seen. They use all features in every step.
      seen_targets: ⟨a_i, μ̃_c/π_c⟩ for these directions, [R, directions].
    """

    features: FeatureMap
    turns: Float[Array, "blocks _ d"] | None
    targets: Float[Array, "blocks classes _"]
    shares: Float[Array, "classes"]
    weights: Float[Array, "classes"]
    unbiased: bool = dataclasses.field(metadata={"static": True})
    seen: Seen | None = None
    seen_targets: Float[Array, "rare directions"] | None = None

    def __call__(
        self, relaxed: Float[Array, "n outputs"], styles: Float[Array, "classes styles"], block: Int[Array, ""]
    ) -> Float[Array, ""]:
        """An estimate of the objective for one block of features.

        For a class let μ_G = Σ_s p_s μ_s, and let m̂_s be the mean over m rows of style s. Then E‖Σ_s p_s m̂_s‖² =
        ‖μ_G‖² + Σ_s p_s² v_s/m, and (mean ‖φ‖² − ‖m̂_s‖²)/(m − 1) is an unbiased estimate of v_s/m.

        Args:
          relaxed: relaxed rows [L S m, D], m rows of each of S styles of each class in turn.
          styles: p, shares of the styles in each class, [L, S].
          block: index of the block.
        """
        size = relaxed.shape[0] // styles.size
        means, squares = self._means(relaxed, styles.shape, block)
        mean, square = self._mixed(means, squares, styles, size)
        target = self.targets[block]
        inner, constant = jnp.sum(target * mean, axis=1), jnp.sum(jnp.square(target), axis=1)
        total = jnp.sum(self.weights * (jnp.square(self.shares) * square - 2 * self.shares * inner + constant))
        if self.seen is None:
            return total
        labels, num_labels = self.seen.labels, styles.shape[0]
        rows = relaxed.reshape(num_labels, -1, relaxed.shape[1])[labels]
        values = _relaxed(self.features, rows.reshape(-1, relaxed.shape[1])).reshape(*rows.shape[:2], -1)
        values = jnp.einsum("rnf,rdf->rnd", values, self.seen.directions, precision=jax.lax.Precision.HIGHEST)
        values = values.reshape(len(labels), styles.shape[1], size, -1)
        squares = jnp.mean(jnp.sum(jnp.square(values), axis=3), axis=2)
        mean, square = self._mixed(jnp.mean(values, axis=2), squares, styles[labels], size)
        target = cast(Array, self.seen_targets)
        distances = square - 2 * jnp.sum(target * mean, axis=1) + jnp.sum(jnp.square(target), axis=1)
        return total + jnp.sum(distances) / num_labels

    def _mixed(self, means: Array, squares: Array | float, styles: Array, size: int) -> tuple[Array, Array]:
        """The means of classes, [L, F], and their squared lengths, [L], from those of styles [L, S, F] and [L, S]."""
        mean = jnp.einsum("ls,lsf->lf", styles, means, precision=jax.lax.Precision.HIGHEST)
        square = jnp.sum(jnp.square(mean), axis=1)
        if self.unbiased:
            spread = squares - jnp.sum(jnp.square(means), axis=2)
            square = square - jnp.sum(jnp.square(styles) * spread, axis=1) / (size - 1)
        return mean, square

    def _means(self, relaxed: Array, groups: tuple[int, ...], block: Array) -> tuple[Array, Array | float]:
        """Means over groups of consecutive rows: of φ, [L, S, F/blocks], and of ‖φ‖², [L, S] or one number for all."""
        if self.turns is None:
            values = _relaxed(self.features, relaxed)
            values = values.reshape(*groups, -1, values.shape[1])
            return jnp.mean(values, axis=2), jnp.mean(jnp.sum(jnp.square(values), axis=3), axis=2)
        # ‖φ‖² is the same for all rows, so all gradients pass through the means. One evaluation of sines and cosines
        # then serves both the matrix product of the angles and the one of their gradients.
        transform, fourier = _fourier_of(self.features)
        features = FourierMap(fourier.kernel, cast(Any, self.turns[block]))  # traced
        values = features(relaxed if transform is None else transform(relaxed))
        return jnp.mean(values.reshape(*groups, -1, values.shape[1]), axis=2), fourier.kernel.diagonal_bound


def objective_of(
    embedding: NoisyEmbedding, shares: Float[np.ndarray, "classes"], training: Training
) -> tuple[Objective, int]:
    """The training objective, and the number of its blocks of features.

    Args:
      embedding: μ̃, of rows with or without labels.
      shares: of the L classes, [L]; [1] for rows without labels.
      training: configuration of the training.
    """
    num_labels, features = _features(embedding.feature_map)
    num_labels = max(num_labels, 1)
    targets = np.asarray(embedding.coordinates, np.float64).reshape(num_labels, -1)
    turns, num_blocks = None, 1
    _, fourier = _fourier_of(features)
    if isinstance(fourier, FourierMap):
        num_frequencies = len(fourier.turns)
        num_blocks = max(1, round(2 * num_frequencies / (training.features_per_step or 2 * num_frequencies)))
        size = num_frequencies // num_blocks  # a few frequencies at the end may be in no block
        turns = jnp.asarray(fourier.turns[: size * num_blocks].reshape(num_blocks, size, -1))
        halves = targets.reshape(num_labels, 2, num_frequencies)[:, :, : size * num_blocks]
        halves = halves.reshape(num_labels, 2, num_blocks, size).transpose(2, 0, 1, 3)
        targets = halves.reshape(num_blocks, num_labels, -1) * math.sqrt(num_frequencies / size)
    else:
        targets = targets[None]
    weights = 1 / (num_labels * np.square(shares))  # classes count equally, and the objective is of order 1
    single = functools.partial(jnp.asarray, dtype=jnp.float32)
    objective = Objective(features, turns, single(targets), single(shares), single(weights), training.unbiased)
    return objective, num_blocks


def _fourier_of(features: FeatureMap) -> tuple[Transform | None, FeatureMap]:
    """The transform of rows, None if there is none, and the map of transformed rows."""
    return (features.transform, features.features) if isinstance(features, TransformedMap) else (None, features)


def _features(feature_map: FeatureMap) -> tuple[int, FeatureMap]:
    """The number of labels, 0 if rows have none, and the map of rows without them."""
    if isinstance(feature_map, LabelledMap):
        return feature_map.num_labels, feature_map.features
    return 0, feature_map


@functools.partial(
    reproducible_jit,
    static_argnames=("graph", "network", "training", "num_labels", "num_blocks", "num_steps", "batch"),
    donate_argnames=("state",),
)
def _train(objective, rows, state, key, first, *, graph, network, training, num_labels, num_blocks, num_steps, batch):
    """The state after ``num_steps`` steps from step ``first``, and the objective of each, [num_steps].

    The buffers of the argument ``state`` are donated, so it must not be used again.
    """
    optimiser, classes = training.optimiser(), len(objective.shares)
    num_styles = max(network.styles, 1)
    labels = jnp.repeat(jnp.arange(classes), batch)
    styles = jnp.tile(jnp.repeat(jnp.arange(num_styles), batch // num_styles), classes)

    def block_of(number):
        # Each round uses every block once. The order differs from round to round.
        order = jax.random.permutation(jax.random.fold_in(key, -1 - number // num_blocks), num_blocks)
        return order[number % num_blocks]

    def step(carry, key_and_block):
        parameters, statistics, moments = carry
        code_key, block = key_and_block

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
    if num_steps == 1:  # without a loop, see CallSettings
        state, value = step(state, jax.tree.map(lambda values: values[0], steps))
        return state, value[None]
    return jax.lax.scan(step, state, steps)


@functools.partial(reproducible_jit, static_argnames=("graph", "network", "num_labels"))
def _features_of(features, rows, parameters, statistics, key, labels, *, graph, network, num_labels):
    """φ of new relaxed rows with labels [n]: [n, F]."""
    module = nnx.merge(graph, parameters["network"], statistics)
    module.eval()
    code_key, style_key = jax.random.split(key)
    styles = jax.random.categorical(style_key, parameters["styles"][labels])
    return _relaxed(features, rows.relaxed(module(_inputs(code_key, network, rows, num_labels, labels, styles))))


@functools.partial(
    reproducible_jit, static_argnames=("graph", "network", "num_labels", "num_blocks", "size", "at_once")
)
def _style_means(features, rows, parameters, statistics, key, *, graph, network, num_labels, num_blocks, size, at_once):
    """Means of φ over new rows of each style of each class, for ``_GROUPS`` groups of rows: [groups, L, S, F].

    A group has ``num_blocks`` blocks of ``size`` rows. ``at_once`` blocks are computed together.
    """
    module = nnx.merge(graph, parameters["network"], statistics)
    module.eval()
    num_classes, num_styles = parameters["styles"].shape
    total = _GROUPS * num_classes * num_styles * num_blocks

    def inputs(number):
        label, style = jnp.divmod(number // num_blocks % (num_classes * num_styles), num_styles)
        ones = jnp.ones(size, jnp.int32)
        code_key = jax.random.fold_in(key, number)
        return _inputs(code_key, network, rows, num_labels, label * ones, style * ones)

    def block_means(numbers):
        blocks = jax.vmap(inputs)(numbers)
        values = _relaxed(features, rows.relaxed(module(blocks.reshape(at_once * size, -1))))
        return jnp.mean(values.reshape(at_once, size, -1), axis=1)

    numbers = jnp.arange(-(-total // at_once) * at_once).reshape(-1, at_once)  # surplus blocks are cut off
    means = jax.lax.map(block_means, numbers).reshape(numbers.size, -1)[:total]
    return jnp.mean(means.reshape(_GROUPS, num_classes, num_styles, num_blocks, -1), axis=3)


def _blocks_at_once(size: int, num_features: int, total: int) -> int:
    """Number of blocks of ``size`` rows, of ``total`` blocks, whose features are in memory at a time.

    The 4-byte features take at most ``_MOST_BYTES``. The calls have about equal numbers of blocks.
    """
    limit = _MOST_BYTES["cpu" if jax.default_backend() == "cpu" else "other"]
    most = max(1, limit // (4 * size * num_features))
    return -(-total // -(-total // most))


def _relaxed(features: FeatureMap, rows: Array) -> Array:
    """φ of relaxed rows. If rows have categories, the mean of φ over their probabilities."""
    return features.relaxed(rows) if isinstance(features, MixedMap) else features(rows)


def simplex_least_squares(vectors: Float[np.ndarray, "n F"], target: Float[np.ndarray, "F"]) -> Float[np.ndarray, "n"]:
    """argmin ‖Σ_s p_s a_s − y‖² over probability vectors p, [S], for vectors a [S, F] and a target y [F].

    For probability vectors the objective is ‖Σ_s p_s (a_s − y)‖². If (1 − Σ_s p_s)² is added, the minimiser over all
    p ≥ 0 is a multiple of the solution. The problem depends on the vectors through their inner products only.
    """
    from scipy.optimize import nnls

    differences = vectors - target
    squares, axes = np.linalg.eigh(differences @ differences.T)
    system = np.concatenate([np.sqrt(np.maximum(squares, 0))[:, None] * axes.T, np.ones((1, len(vectors)))])
    multiple, _ = nnls(system, np.append(np.zeros(len(vectors)), 1.0))
    return multiple / multiple.sum()


def estimated_fit(
    means: Float[np.ndarray, "groups classes styles F"],
    coordinates: Float[np.ndarray, "classes F"],
    shares: Float[np.ndarray, "classes"],
    seen: Seen | None = None,
) -> tuple[Float[np.ndarray, "classes styles"], Float[np.ndarray, "groups classes F"]]:
    """The best shares of the styles, [L, S], and residuals μ̃ − μ_G with these shares for each group of rows.

    Args:
      means: of φ over new rows of each style of each class, for groups of rows, [groups, L, S, F].
      coordinates: μ̃, [L, F].
      shares: of the classes, [L].
      seen: the metric in which the shares of styles of rare classes are fitted; None if there are none.
    """
    targets = coordinates / shares[:, None]
    pairs = list(zip(means.mean(axis=0), targets, strict=True))
    for place, label in enumerate([] if seen is None else seen.labels):
        mean, goal = pairs[label]
        pairs[label] = cast(Seen, seen).coordinates(place, mean), cast(Seen, seen).coordinates(place, goal)
    styles = [simplex_least_squares(mean, goal) for mean, goal in pairs]
    return np.asarray(styles), coordinates - shares[:, None] * np.einsum("ls,glsf->glf", styles, means)


def squared_distance(residuals: Float[np.ndarray, "groups classes F"]) -> tuple[float, float]:
    """‖μ̃ − μ_G‖² and its standard error, from residuals μ̃ − μ_G for groups of rows, [groups, L, F].

    Given the generator, the residuals of two groups of rows are independent, so their inner product is an unbiased
    estimate. The standard error is the jackknife's over groups.
    """
    products = np.einsum("glf,hlf->gh", residuals, residuals)

    def fit(products: np.ndarray) -> float:
        return float((products.sum() - np.trace(products)) / (len(products) * (len(products) - 1)))

    size = len(products)
    without = [fit(np.delete(np.delete(products, k, axis=0), k, axis=1)) for k in range(size)]
    return fit(products), math.sqrt((size - 1) * np.var(without))


def class_shares(counts: NoisyEmbedding, num_labels: int) -> Float[np.ndarray, "classes"]:
    """Shares of the classes from noisy counts, [L], with Σ = 1. Noisy shares below a thousandth are raised to it first.

    Raises:
      ValueError: the counts are not the marginal of one column with ``num_labels`` codes.
    """
    marginal = _marginal(counts)
    if marginal.shape != (num_labels,):
        raise ValueError(f"counts: expected {num_labels} classes, got a marginal of shape {list(marginal.shape)}")
    shares = np.maximum(marginal, _LEAST_SHARE)
    return shares / shares.sum()


def covered_share(counts: NoisyEmbedding) -> float:
    """The share of rows that are in a class, by noisy counts. Post-processing.

    It is 1, which is exact if every row is in a class. Only if the noisy shares add up to less than noise makes likely
    (5 standard deviations below 1) is it their sum.

    Args:
      counts: noisy shares of the classes, [L].

    Raises:
      ValueError: as for :func:`class_shares`.
    """
    marginal = _marginal(counts)
    total = float(np.sum(marginal))
    return max(total, _LEAST_COVERED) if total < 1 - 5 * math.sqrt(marginal.size * counts.mechanism.variance) else 1.0


def _marginal(counts: NoisyEmbedding) -> Float[np.ndarray, "..."]:
    feature_map = counts.feature_map
    if not (isinstance(feature_map, TableMap) and len(feature_map.blocks) == 1):
        raise ValueError(
            "counts: expected the noisy embedding of the marginal of the label, as measure_generator returns"
        )
    return feature_map.marginals(counts.coordinates, 1)[0]


def train_generator(
    key: PRNGKeyArray,
    embedding: NoisyEmbedding,
    network: Network,
    training: Training | None = None,
    *,
    counts: NoisyEmbedding | None = None,
    bounds: tuple[float | Real[np.ndarray, "d"], float | Real[np.ndarray, "d"]] | None = None,
    levels: int = 0,
    checkpoint: str | None = None,
    progress: Progress | bool = False,
) -> Generator:
    """A generator whose mean embedding is close to the noisy embedding ([H] equations 7, 16 and algorithm 1, step 5).

    This is post-processing: nothing here sees a private row. μ_G is linear in the shares of the styles. At the end of
    training these shares are replaced by the best ones, which is a convex problem. A style that represents no rows gets
    the share 0.

    The same key, embedding and arguments give the same generator, bit for bit and in every process, on the same kind of
    device with the same versions of the libraries. So on a GPU, XLA may not choose algorithms by their timings. This
    costs little time, because the number of kernels limits a step, and it makes compilation faster. On another kind of
    device, or with another number of steps in a call, rounding differs, and training amplifies the difference.

    A class is rare here if the noise of its embedding μ̃_c/π_c is larger than what tells the classes apart, and its
    variance is more than four times that of the class with the least. Training on this embedding would learn noise. So
    rare classes borrow from the others. In the first cycle, training uses the posterior mean of μ_c under a normal
    prior around the mean of the other classes. After each cycle, a prior covariance is made from rows of the generator
    for the classes that are not rare, and its size is estimated from all classes. From then on, each direction of
    μ̃_c/π_c counts by the share of it that is signal and not noise. All of this sees the noisy embedding, the noisy
    counts and the size of their noise, so it is post-processing. Other classes are left as they are, and without rare
    classes nothing changes. Of two classes none is rare if the estimate of their distance is below its standard error:
    each would borrow from the other alone. ``report.below_noise`` names classes that cannot be seen.

    Angles of Fourier features and their gradients have the accuracy of float32. The layers of the network have the
    default precision of the device's matrix products. On an NVIDIA GPU this is TF32 (10 bits of mantissa).

    Args:
      key: a JAX random key, for parameters and latent codes.
      embedding: the noisy embedding μ̃ of Fourier features, of mixed rows, or of either with labels (``LabelledMap``).
      network: description of the network, for example ``networks.MLP()``.
      training: configuration of the training; its defaults if None.
      counts: noisy shares of the classes, from a ``TableMap`` of the label. They set the shares of the classes in the
        generator. Classes then count equally in the objective ([H] equation 18 divides the embedding of each class by
        its share). Without counts, all classes are taken to be equally frequent.
      bounds: public lower and upper bounds of the numeric columns. Generated numbers lie between them. Use (0, 1) if
        rows were scaled by ``Bounds``.
      levels: number of equal steps between the bounds, to which numbers of synthetic rows are rounded; 255 for pixels.
      checkpoint: a folder for checkpoints. An interrupted training continues from the last checkpoint in it.
      progress: True for a bar, or a function that is called with (steps done, total steps).

    Raises:
      ValueError: the map, the network, counts or bounds do not fit together, the checkpoint is of another training, or
        the training diverges.

    Examples:
      >>> import jax, numpy as np
      >>> from kme_jax import FourierMap, Gaussian, PrivacyBudget, mean_embedding, perturb
      >>> from kme_jax.generators import MLP, Training, train_generator
      >>> rows = np.random.default_rng(0).normal(size=(1000, 2))  # private
      >>> features = FourierMap.from_kernel(jax.random.key(0), Gaussian(gamma=0.5), num_features=64, dim=2)
      >>> noisy = perturb(jax.random.key(1), mean_embedding(features, rows), PrivacyBudget(1.0, 1e-5))
      >>> network, training = MLP(widths=(20,)), Training(num_steps=50, num_cycles=1, batch_size=100)
      >>> generator = train_generator(jax.random.key(2), noisy, network, training, bounds=(-4, 4))
      >>> generator.sample(5).shape
      (5, 2)
    """
    public = {"counts": counts, "bounds": bounds, "levels": levels}
    return train_in_calls(
        key,
        embedding,
        network,
        training or Training(),
        CallSettings(),
        **public,
        checkpoint=checkpoint,
        progress=progress,
    )


@shows_progress("training")
def train_in_calls(
    key: PRNGKeyArray,
    embedding: NoisyEmbedding,
    network: Network,
    training: Training,
    calls: CallSettings,
    *,
    counts: NoisyEmbedding | None = None,
    bounds: tuple[float | Real[np.ndarray, "d"], float | Real[np.ndarray, "d"]] | None = None,
    levels: int = 0,
    checkpoint: str | None = None,
    progress: Progress | bool = False,
) -> Generator:
    """:func:`train_generator` with a choice of how the training is cut into calls.

    Args:
      key: as for :func:`train_generator`, as are all arguments but one.
      embedding: see ``key``.
      network: see ``key``.
      training: see ``key``.
      calls: how the training is cut into calls.
      counts: see ``key``.
      bounds: see ``key``.
      levels: see ``key``.
      checkpoint: see ``key``.
      progress: see ``key``.

    Raises:
      ValueError: as :func:`train_generator`.
    """
    for name, value, kind in (("network", network, Network), ("training", training, Training)):
        if not isinstance(value, kind):
            given = value.__name__ if isinstance(value, type) else type(value).__name__
            raise ValueError(f"{name}: expected a {kind.__name__}, such as {_EXAMPLES[name]}, got {given}")
    public = {"counts": counts, "bounds": bounds, "levels": levels}
    keys = [key] if training.num_generators == 1 else list(jax.random.split(key, training.num_generators))
    training = dataclasses.replace(training, num_generators=1)
    members: list[_Trained] = []
    for number, member_key in enumerate(keys):
        before = sum(member.generator.report.steps[-1] for member in members)
        after = (len(keys) - number - 1) * training.pieces()[-1]
        folder = checkpoint if checkpoint is None or len(keys) == 1 else os.path.join(checkpoint, str(number))
        told = functools.partial(_advanced, progress, before, after) if callable(progress) else None
        members.append(
            _trained(member_key, embedding, network, training, calls, **public, checkpoint=folder, progress=told)
        )
    generator = members[0].generator if len(members) == 1 else _pooled(members, embedding)
    report = generator.report
    if report.fit - 4 * math.hypot(report.standard_error, _spread(embedding, report.expected)) > (
        _POOR_FIT * report.expected
    ):
        with contextlib.suppress(UserWarning):  # a setting that turns warnings into errors must not lose the generator
            warnings.warn(
                f"the generator does not fit: ‖μ̃ − μ_G‖² = {report.fit:.3g} after {report.steps[-1]} steps, and the "
                f"noise's square is {report.expected:.3g}. More cycles or steps, a larger network, or counts of the "
                "classes may help",
                stacklevel=4,
            )
    return generator


def _advanced(progress: Callable[[int, int], None], before: int, after: int, done: int, total: int) -> None:
    """Tells the progress of one of several trainings as that of all."""
    progress(before + done, before + total + after)


def _spread(embedding: NoisyEmbedding, expected: float) -> float:
    """The standard deviation of the square of the noise, whose expectation is given."""
    square_variance = noise_of(embedding.mechanism.noise).square_variance
    return expected * math.sqrt(square_variance / np.size(embedding.coordinates))


def _report(
    embedding: NoisyEmbedding,
    trace: Sequence[float],
    steps: Sequence[int],
    residuals: Float[np.ndarray, "groups classes F"],
    expected: float,
    visibility: Sequence[float],
) -> GeneratorReport:
    """The report of a generator with these residuals μ̃ − μ_G for groups of rows."""
    fit, error = squared_distance(residuals)
    converged = fit <= expected + 4 * math.hypot(error, _spread(embedding, expected))
    return GeneratorReport(tuple(trace), tuple(steps), fit, error, expected, converged, tuple(visibility))


class _Trained(NamedTuple):
    """A generator, and residuals μ̃ − μ_G for groups of its rows, [groups, L, F]."""

    generator: Generator
    residuals: Float[np.ndarray, "groups classes F"]


def _pooled(members: Sequence[_Trained], embedding: NoisyEmbedding) -> Generator:
    """The mixture in equal parts of generators of one network, as one generator, see ``Pool``. Post-processing.

    The mean embedding of the mixture is the mean of those of its members.
    """
    generators, residuals = zip(*members, strict=True)
    first, reports = generators[0], [generator.report for generator in generators]
    state: dict[str, Shaped[np.ndarray, "..."]] = {}
    for number, generator in enumerate(generators):
        for name, value in generator.state.items():
            if name != _STYLES:
                part = _NETWORK if name.startswith(_NETWORK) else ""
                state[f"{part}members.{number}.{name.removeprefix(part)}"] = value
    state[_STYLES] = np.concatenate([generator.state[_STYLES] for generator in generators], axis=1)
    starts = np.cumsum([0, *(report.steps[-1] for report in reports[:-1])]).tolist()
    return dataclasses.replace(
        first,
        network=Pool(first.network, len(generators)),
        state=state,
        report=_report(
            embedding,
            [value for report in reports for value in report.objective],
            [start + step for start, report in zip(starts, reports, strict=True) for step in report.steps],
            np.mean(residuals, axis=0),
            first.report.expected,
            np.mean([report.visibility for report in reports], axis=0).tolist(),
        ),
    )


def _trained(
    key: PRNGKeyArray,
    embedding: NoisyEmbedding,
    network: Network,
    training: Training,
    calls: CallSettings,
    *,
    counts: NoisyEmbedding | None,
    bounds: tuple[float | Real[np.ndarray, "d"], float | Real[np.ndarray, "d"]] | None,
    levels: int,
    checkpoint: str | None,
    progress: Callable[[int, int], None] | None,
) -> _Trained:
    """One training, see :func:`train_in_calls`."""
    num_labels, features = _features(embedding.feature_map)
    rows = Rows.create(features, bounds, levels)
    if counts is not None and not num_labels:
        raise ValueError("counts are of classes, and these rows have no label: leave counts out, or use a LabelledMap")
    shares, covered = np.full(max(num_labels, 1), 1 / max(num_labels, 1)), 1.0
    if counts is not None:
        shares, covered = class_shares(counts, num_labels), covered_share(counts)
    # Rows that are not covered add nothing to the sum, but count in N. This is the mean over the covered rows.
    target = dataclasses.replace(embedding, coordinates=np.asarray(embedding.coordinates, np.float64) / covered)
    num_styles = max(network.styles, 1)
    batch = num_styles * max(2, round(training.batch_size / len(shares) / num_styles))
    coordinates = target.coordinates.reshape(len(shares), -1)
    variance = embedding.mechanism.variance / covered**2
    classes = ClassEmbeddings.create(coordinates, shares, variance) if len(shares) > 1 else None
    rare = classes.rare if classes is not None and training.borrow else np.zeros(len(shares), bool)
    objective, num_blocks = objective_of(target, shares, training)

    def with_rare(seen: Seen | None, begun: bool) -> Objective:
        """The objective: rare classes near the mean of the others at first, and later by what is seen of them."""
        if classes is None or seen is None:
            return jax.device_put(objective)
        factors, chosen = np.ones(len(shares)), coordinates
        if begun:
            factors[seen.labels] = seen.everywhere
        else:
            chosen = np.where(rare[:, None], shares[:, None] * classes.shrunk(), coordinates)
        changed, _ = objective_of(dataclasses.replace(target, coordinates=chosen.ravel()), shares, training)
        projected = np.einsum("rdf,rf->rd", seen.directions, classes.values[seen.labels])
        changed = dataclasses.replace(
            changed,
            weights=changed.weights * np.asarray(factors, np.float32),
            seen=seen,
            seen_targets=jnp.asarray(projected, jnp.float32),
        )
        return jax.device_put(changed)

    def prior_of(classes: ClassEmbeddings, done: int) -> Prior:
        """The prior of the classes, from rows of the generator."""
        common = np.flatnonzero(~classes.rare)
        labels = np.resize(common, num_prior_rows(features.num_features)).astype(np.int32)
        sampled = _features_of(
            features, rows, state[0], state[1], jax.random.fold_in(prior_key, done), labels, graph=graph,
            network=network, num_labels=num_labels,
        )  # fmt: skip
        return Prior.estimate(classes, np.asarray(sampled, np.float64))

    seen = Seen.nothing(classes) if classes is not None and rare.any() else None
    build_key, step_key, judge_key = jax.random.split(key, 3)
    prior_key = jax.random.fold_in(judge_key, 2**32 - 1)  # the other numbers folded in are of steps
    module = network.build(num_labels, rows.num_outputs, nnx.Rngs(build_key))
    check_module(module, network, num_labels, rows.num_outputs)
    graph, parameters, statistics = _split(module, network, num_labels)
    state = parameters, statistics, training.optimiser().init(parameters)
    expected = coordinates.size * variance

    def judged(key: Array, least: int, share: float) -> tuple[np.ndarray, np.ndarray]:
        """See ``estimated_fit``. At least ``least`` rows of each class are used.

        There are more if the variance of their mean would exceed ``share`` of the square of the noise, up to a limit.
        """
        num_rows = min(np.sum(np.square(shares)) / (share * expected), _MOST_VALUES / coordinates.size)
        num_rows = math.ceil(max(least, num_rows) / _GROUPS / num_styles)
        num_blocks = -(-num_rows // _ROWS_PER_BLOCK)
        size, total = -(-num_rows // num_blocks), _GROUPS * len(shares) * num_styles * num_blocks
        means = _style_means(
            features, rows, state[0], state[1], key, graph=graph, network=network, num_labels=num_labels,
            num_blocks=num_blocks, size=size, at_once=_blocks_at_once(size, features.num_features, total),
        )  # fmt: skip
        return estimated_fit(np.asarray(means, np.float64), coordinates, shares, seen)

    trace: list[float] = []
    done = 0
    keeper = None
    if checkpoint is not None:
        limits = [] if rows.lower is None else [rows.lower, rows.upper]
        transforms = [of for of in [_fourier_of(features)[0]] if of is not None]
        public = (in_full((network, training, rows.categories, levels, *transforms)), key, target.coordinates, shares)
        keeper = Checkpoints(
            checkpoint, (*public, *jax.tree.leaves(features), *limits), calls.seconds_between_checkpoints
        )
        done, trace, (state, seen) = keeper.latest((state, seen))
    now = with_rare(seen, done > training.num_steps)
    run = functools.partial(
        _train, rows=rows, graph=graph, network=network, training=training, num_labels=num_labels,
        num_blocks=num_blocks, batch=batch,
    )  # fmt: skip
    at_once = calls.steps_of(network)
    pieces, kept = training.pieces(), done
    for end in training.calls(at_once):
        if end < kept:
            continue
        values = []
        while done < end:
            size = min(at_once, end - done)
            state, objectives = run(now, state=state, key=step_key, first=done, num_steps=size)
            values.append(objectives)
            done += size
        if values:
            values = np.concatenate(values)
            ends = [piece for piece in pieces if done - len(values) < piece <= done]
            trace += [float(np.mean(piece)) for piece in np.split(values, np.subtract(ends[:-1], done - len(values)))]
        if not np.isfinite(trace).all():
            raise ValueError(f"training: the objective is {trace[-1]} after {done} steps; lower the learning rate")
        ends_cycle = end % training.num_steps == 0
        if keeper is not None and end > kept:
            keeper.keep(done, trace, (state, seen), last=ends_cycle)
        last = end == pieces[-1]
        if ends_cycle and not last:
            fit, error = squared_distance(judged(jax.random.fold_in(judge_key, done), 2048, 1 / 50)[1])
            last = fit + error <= expected and (done > training.num_steps or not rare.any())
            if classes is not None and seen is not None and not last:
                seen = prior_of(classes, done).seen(classes)
                now = with_rare(seen, True)
        if progress is not None:
            progress(done, done if last else pieces[-1])
        if last:
            break
    visibility: tuple[float, ...] = ()
    if classes is not None:
        prior = prior_of(classes, done)
        seen = None if seen is None else prior.seen(classes)
        counted = are_counted(_marginal(counts), counts.mechanism.variance) if counts is not None else True
        visibility = tuple(float(value) for value in np.where(counted, prior.visibility(classes), 0.0))
    style_shares, residuals = judged(judge_key, 8192, 1 / 200)
    parameters, statistics = cast(dict[str, Any], state[0]), state[1]
    parameters |= {_STYLES: np.log(np.maximum(style_shares, _LEAST_STYLE)).astype(np.float32)}
    report = _report(embedding, trace, pieces[: len(trace)], residuals, expected, visibility)
    mechanisms = tuple(noisy.mechanism for noisy in (embedding, counts) if noisy is not None)
    labels = shares if num_labels else None
    state_by_name = _flat(parameters, statistics)
    generator = Generator(network, rows, labels, state_by_name, report, mechanisms, digest(embedding))
    return _Trained(generator, residuals)


def digest(embedding: NoisyEmbedding) -> str:
    """The SHA-256 digest of the coordinates of a noisy embedding, in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(embedding.coordinates, np.float64).tobytes()).hexdigest()
