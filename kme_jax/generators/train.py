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
import math
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, PRNGKeyArray, Real, Shaped

from kme_jax._numerics.precision import Progress, reproducible_jit
from kme_jax._numerics.progress import shows_progress
from kme_jax._numerics.short_repr import in_full
from kme_jax.generators.checkpoints import Checkpoints
from kme_jax.generators.fit import (
    NUM_GROUPS,
    ROWS_PER_BLOCK,
    blocks_at_once,
    class_shares,
    covered_share,
    estimated_fit,
    features_of_rows,
    label_marginal,
    squared_distance,
    style_means,
)
from kme_jax.generators.generator import (
    NETWORK,
    STYLES,
    Generator,
    GeneratorReport,
    Rows,
    flat_arrays,
    network_inputs,
    split_module,
)
from kme_jax.generators.networks import Network, Pool, check_module
from kme_jax.generators.nnx import nnx
from kme_jax.generators.objective import Objective, fourier_of, labels_and_features, objective_of
from kme_jax.generators.rare import ClassEmbeddings, Prior, Seen, are_counted, num_prior_rows
from kme_jax.generators.settings import CallSettings, Training
from kme_jax.privacy.mechanisms import NoisyEmbedding, noise_of

Array = jax.Array

_MOST_VALUES = 4e8  # limit of the number of features of such rows, unless there are only a few rows
_LEAST_STYLE = 1e-30  # share of a style that no row has
_POOR_FIT = 2.0  # ‖μ̃ − μ_G‖² above which a warning is given, in units of the square of the noise
_EXAMPLES = {"network": "MLP()", "training": "Training()"}  # of arguments


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
            if name != STYLES:
                part = NETWORK if name.startswith(NETWORK) else ""
                state[f"{part}members.{number}.{name.removeprefix(part)}"] = value
    state[STYLES] = np.concatenate([generator.state[STYLES] for generator in generators], axis=1)
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
    num_labels, features = labels_and_features(embedding.feature_map)
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
        sampled = features_of_rows(
            features, rows, state[0], state[1], jax.random.fold_in(prior_key, done), labels, graph=graph,
            network=network, num_labels=num_labels,
        )  # fmt: skip
        return Prior.estimate(classes, np.asarray(sampled, np.float64))

    seen = Seen.nothing(classes) if classes is not None and rare.any() else None
    build_key, step_key, judge_key = jax.random.split(key, 3)
    prior_key = jax.random.fold_in(judge_key, 2**32 - 1)  # the other numbers folded in are of steps
    module = network.build(num_labels, rows.num_outputs, nnx.Rngs(build_key))
    check_module(module, network, num_labels, rows.num_outputs)
    graph, parameters, statistics = split_module(module, network, num_labels)
    state = parameters, statistics, training.optimiser().init(parameters)
    expected = coordinates.size * variance

    def judged(key: Array, least: int, share: float) -> tuple[np.ndarray, np.ndarray]:
        """See ``estimated_fit``. At least ``least`` rows of each class are used.

        There are more if the variance of their mean would exceed ``share`` of the square of the noise, up to a limit.
        """
        num_rows = min(np.sum(np.square(shares)) / (share * expected), _MOST_VALUES / coordinates.size)
        num_rows = math.ceil(max(least, num_rows) / NUM_GROUPS / num_styles)
        num_blocks = -(-num_rows // ROWS_PER_BLOCK)
        size, total = -(-num_rows // num_blocks), NUM_GROUPS * len(shares) * num_styles * num_blocks
        means = style_means(
            features, rows, state[0], state[1], key, graph=graph, network=network, num_labels=num_labels,
            num_blocks=num_blocks, size=size, at_once=blocks_at_once(size, features.num_features, total),
        )  # fmt: skip
        return estimated_fit(np.asarray(means, np.float64), coordinates, shares, seen)

    trace: list[float] = []
    done = 0
    keeper = None
    if checkpoint is not None:
        limits = [] if rows.lower is None else [rows.lower, rows.upper]
        transforms = [of for of in [fourier_of(features)[0]] if of is not None]
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
        counted = are_counted(label_marginal(counts), counts.mechanism.variance) if counts is not None else True
        visibility = tuple(float(value) for value in np.where(counted, prior.visibility(classes), 0.0))
    style_shares, residuals = judged(judge_key, 8192, 1 / 200)
    parameters, statistics = cast(dict[str, Any], state[0]), state[1]
    parameters |= {STYLES: np.log(np.maximum(style_shares, _LEAST_STYLE)).astype(np.float32)}
    report = _report(embedding, trace, pieces[: len(trace)], residuals, expected, visibility)
    mechanisms = tuple(noisy.mechanism for noisy in (embedding, counts) if noisy is not None)
    labels = shares if num_labels else None
    state_by_name = flat_arrays(parameters, statistics)
    generator = Generator(network, rows, labels, state_by_name, report, mechanisms, digest(embedding))
    return _Trained(generator, residuals)


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
            raw = module(network_inputs(code_key, network, rows, num_labels, labels, styles))
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


def digest(embedding: NoisyEmbedding) -> str:
    """The SHA-256 digest of the coordinates of a noisy embedding, in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(embedding.coordinates, np.float64).tobytes()).hexdigest()
