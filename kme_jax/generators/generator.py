"""A generator: a network, its parameters, and how its outputs become rows."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32, Int, Int32, PRNGKeyArray, Real, Shaped

from kme_jax._numerics import html
from kme_jax._numerics.precision import MAX_SEED, reproducible_jit
from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.validation import check_array, require
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.feature_maps.labelled import MixedMap
from kme_jax.feature_maps.subspace import SubspaceMap
from kme_jax.feature_maps.table import TableMap
from kme_jax.generators.networks import Network
from kme_jax.generators.nnx import nnx
from kme_jax.privacy.budget import check_integer
from kme_jax.privacy.mechanisms import NOT_PRIVATE, Mechanism

Array = jax.Array

_ROWS_AT_ONCE = 2048
_BLOCKS_PER_CALL = 8  # blocks of _ROWS_AT_ONCE rows that are sampled in one call on an accelerator
_MOST_ROWS = 10**9  # of a sample
_MOST_LEVELS = 2**31 - 1
_LEAST_VISIBLE = 0.5  # visibility of a class that is not below the noise
NETWORK, STYLES = "network.", "styles"  # names of parameters: the prefix of those of the network, and the others


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
        graph, parameters, statistics = split_module(
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
    _, *trees = split_module(module, network, num_labels)
    leaves = [pair for tree in trees for pair in jax.tree_util.tree_flatten_with_path(tree)[0]]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def split_module(module: nnx.Module, network: Network, num_labels: int):
    """The graph, the parameters and the statistics of a module.

    Parameters are those of the network, and logits of the shares of styles, [max(L, 1), styles].
    """
    graph, parameters, statistics = nnx.split(module, nnx.Param, ...)
    styles = jnp.zeros((max(num_labels, 1), max(network.styles, 1)))
    return graph, {"network": parameters, "styles": styles}, statistics


def flat_arrays(*trees: Any) -> dict[str, Shaped[np.ndarray, "..."]]:
    arrays = {}
    for tree in trees:
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            arrays[jax.tree_util.keystr(path, simple=True, separator=".")] = np.asarray(leaf)
    return arrays


def _from_flat(tree: Any, state: dict[str, Shaped[np.ndarray, "..."]]) -> Any:
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in
             jax.tree_util.tree_flatten_with_path(tree)[0]]  # fmt: skip
    return jax.tree.unflatten(jax.tree.structure(tree), [state[name] for name in names])


def network_inputs(
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
        return rows.written(row_key, module(network_inputs(code_key, network, rows, num_labels, labels, styles, noise)))

    return jax.lax.map(block, (starts, labels))
