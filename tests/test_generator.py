"""Generators: what they are trained on, what they return, and that they do not see private rows."""

import dataclasses
import inspect
import json
import math
import pathlib
import re
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from kme_jax import (
    FourierMap,
    Gaussian,
    Ledger,
    PrivacyBudget,
    SubspaceMap,
    cli,
    dp_merf,
    mean_embedding,
    open_rows,
    perturb,
)
from kme_jax.embedding import class_labels
from kme_jax.feature_maps import LabelledMap, LatticeMap, MixedMap
from kme_jax.feature_maps.table import TableMap
from kme_jax.generators.fit import class_shares, covered_share, estimated_fit, simplex_least_squares, squared_distance
from kme_jax.generators.generator import Rows
from kme_jax.generators.measure import measure_generator, measure_labelled
from kme_jax.generators.networks import MLP, Convolutional, Network, Pool, SmoothImages
from kme_jax.generators.objective import objective_of
from kme_jax.generators.release import GeneratorMeasurement, GeneratorRelease
from kme_jax.generators.settings import CallSettings, Training
from kme_jax.generators.train import digest, train_generator, train_in_calls
from kme_jax.privacy.calibration import gaussian_delta
from kme_jax.privacy.composition import Composition
from kme_jax.privacy.ledger import Spending
from kme_jax.privacy.statement import schema
from kme_jax.storage.folders import ReleaseError
from tests import compiled, one_generator
from tests.arguments import arguments

BUDGET = PrivacyBudget(2.0, 1e-5)
FOURIER = FourierMap.from_kernel(jax.random.key(1), Gaussian(0.5), 400, 2)
LABELLED = LabelledMap(FOURIER, 3)
SMALL = MLP(widths=(20, 20), code=2)
QUICK = Training(num_steps=50, num_cycles=1, batch_size=60)
LONG = Training(num_steps=600, num_cycles=1, batch_size=120, learning_rate=1e-2)
CENTRES = np.asarray([[-2.0, 0.0], [0.0, 2.0], [2.0, 0.0]])


def _rows(num_rows=3000, shares=(0.5, 0.3, 0.2), seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.choice(3, num_rows, p=shares)
    return np.concatenate([CENTRES[labels] + 0.5 * rng.normal(size=(num_rows, 2)), labels[:, None]], axis=1)


def _measured(rows, counts=True, key=3):
    sums = mean_embedding(TableMap.of_codes(3), class_labels(LABELLED, rows)) if counts else None
    return measure_labelled(jax.random.key(key), mean_embedding(LABELLED, rows), sums, BUDGET)


def _trained(num_rows, training):
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        measured = _measured(_rows(num_rows))
        made = train_generator(jax.random.key(5), measured.embedding, SMALL, training, counts=measured.counts)
    return measured, made


@pytest.fixture(scope="module")
def trained():
    """A generator of rows of the right form; most tests do not look at where they are."""
    return _trained(2000, QUICK)


@pytest.fixture(scope="module")
def well_trained():
    return _trained(20_000, LONG)


@pytest.mark.slow
def test_rows_of_every_class_are_where_they_should_be(well_trained):
    _, made = well_trained
    rows = made.sample(6000, seed=1)
    assert rows.shape == (6000, 3)
    assert rows.dtype == np.float32
    for label in range(3):
        some = rows[rows[:, 2] == label, :2]
        np.testing.assert_allclose(some.mean(axis=0), CENTRES[label], atol=0.15)
        assert 0.35 < some.std(axis=0).mean() < 0.65
    np.testing.assert_allclose(np.bincount(rows[:, 2].astype(int)) / 6000, [0.5, 0.3, 0.2], atol=0.02)
    assert made.report.objective[-1] < 0.2 * made.report.objective[0]


@pytest.mark.slow
def test_the_report_says_how_far_off_noise_is(well_trained):
    measured, made = well_trained
    report, coordinates = made.report, measured.embedding.coordinates
    spread = report.expected * math.sqrt(2 / len(coordinates))
    assert report.converged == (report.fit <= report.expected + 4 * math.hypot(spread, report.standard_error))
    # What is expected is the square of the noise.
    noise = coordinates - mean_embedding(LABELLED, _rows(20_000)).coordinates
    assert report.expected == pytest.approx(np.sum(noise**2), rel=0.25)
    # The fit is that of rows as they are sampled, within its error.
    sampled = mean_embedding(LABELLED, made.sample(60_000, seed=9).astype(float)).coordinates
    assert report.fit == pytest.approx(np.sum((coordinates - sampled) ** 2), abs=5 * report.standard_error + 2e-5)
    assert 0 < report.standard_error < 1e-4


def test_judgement_is_unbiased_and_knows_its_error():
    """From groups of few rows, hundreds of times: the mean is ‖μ̃ − μ_G‖², the error is that of one estimate."""
    rng = np.random.default_rng(0)
    shares, means = np.asarray([0.7, 0.3]), rng.normal(size=(2, 1, 20))
    coordinates = shares[:, None] * means[:, 0] + 0.1 * rng.normal(size=(2, 20))
    found = [
        squared_distance(estimated_fit(means + 0.3 * rng.normal(size=(4, 2, 1, 20)), coordinates, shares)[1])
        for _ in range(800)
    ]
    fits, errors = np.transpose(found)
    truth = np.sum((coordinates - shares[:, None] * means[:, 0]) ** 2)
    assert np.mean(fits) == pytest.approx(truth, abs=5 * np.std(fits) / math.sqrt(800))
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(np.std(fits), rel=0.35)


@pytest.mark.long
def test_styles_have_the_best_shares():
    """Two modes of .7 and .3, four styles: shares are probabilities, no others fit better, and rows follow them."""
    rng = np.random.default_rng(0)
    rows = np.where(rng.uniform(size=(20_000, 1)) < 0.7, -2.0, 2.0) + 0.3 * rng.normal(size=(20_000, 2))
    target = perturb(jax.random.key(0), mean_embedding(FOURIER, rows), BUDGET)
    training = Training(num_steps=300, num_cycles=1, batch_size=80, learning_rate=2e-2)
    made = train_generator(jax.random.key(3), target, dataclasses.replace(SMALL, styles=4), training)
    shares = np.exp(made.state["styles"])
    np.testing.assert_allclose(shares.sum(), 1, rtol=1e-5)
    assert np.mean(made.sample(5000)[:, 0] < 0) == pytest.approx(0.7, abs=0.04)

    def fit(shares):
        state = made.state | {"styles": np.log(np.maximum(shares, 1e-30)).astype(np.float32)}
        sample = dataclasses.replace(made, state=state).sample(20_000, seed=1).astype(float)
        return np.sum((target.coordinates - mean_embedding(FOURIER, sample).coordinates) ** 2)

    best = fit(shares)
    for other in rng.dirichlet(np.ones(4), 20)[:, None]:
        assert fit(other) > best - 1e-3


def test_least_squares_over_probabilities():
    rng = np.random.default_rng(1)
    vectors, target = rng.normal(size=(3, 5)), rng.normal(size=5)
    found = simplex_least_squares(vectors, target)
    assert found.min() >= 0
    np.testing.assert_allclose(found.sum(), 1, rtol=1e-12)
    least = min(np.sum((p @ vectors - target) ** 2) for p in rng.dirichlet(np.ones(3) / 2, 20_000))
    assert least - 1e-3 < np.sum((found @ vectors - target) ** 2) <= least
    np.testing.assert_allclose(simplex_least_squares(vectors, vectors[1]), [0, 1, 0], atol=1e-7)


@pytest.mark.long
def test_steps_are_the_same_however_many_are_in_a_call():
    measured, found = _measured(_rows()), []
    for steps in (1, 50, 500):  # a CPU's for convolutions, a CPU's, an accelerator's
        seen = []
        made = train_in_calls(
            jax.random.key(1), measured.embedding, SMALL, dataclasses.replace(QUICK, num_steps=55, num_cycles=2),
            CallSettings(steps), counts=measured.counts, progress=lambda done, total, seen=seen: seen.append(done),
        )  # fmt: skip
        assert made.report.steps == (50, 55, 105, 110)
        assert seen == ([55, 110] if steps == 500 else [50, 55, 105, 110])
        found.append(made.report.objective)
    np.testing.assert_allclose(found[1:], found[:1] * 2, rtol=1e-3)


def test_calls_end_where_pieces_and_cycles_do():
    training = Training(num_steps=620, num_cycles=2)
    assert training.pieces()[-3:] == [1170, 1220, 1240]
    assert training.calls(1) == training.calls(50) == training.pieces()
    assert training.calls(500) == [350, 620, 970, 1240]
    assert Training(num_steps=500, num_cycles=3).calls(500) == [500, 1000, 1500]


@pytest.mark.long
def test_the_same_key_makes_the_same_bits_in_another_process():
    """On a GPU as on a CPU: embedding, training, judgement and samples."""
    command, root = [sys.executable, "-m", "tests.one_generator"], pathlib.Path(__file__).parents[1]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    assert run.stdout == f"{one_generator.digest()}\n"


@pytest.mark.long
def test_the_same_key_makes_the_same_generator():
    measured = _measured(_rows())
    one, same, other = (
        train_generator(jax.random.key(key), measured.embedding, SMALL, QUICK, counts=measured.counts)
        for key in (1, 1, 2)
    )
    for name, value in one.state.items():
        np.testing.assert_array_equal(value, same.state[name])
    np.testing.assert_array_equal(one.sample(100, seed=4), same.sample(100, seed=4))
    assert np.any(one.sample(100, seed=4) != one.sample(100, seed=5))
    assert any(np.any(value != other.state[name]) for name, value in one.state.items())


def test_a_longer_sample_begins_like_a_shorter_one_of_the_same_labels(trained):
    _, made = trained
    labels = np.arange(5000) % 3
    np.testing.assert_array_equal(made.sample(10, labels=labels[:10]), made.sample(5000, labels=labels)[:10])


def test_labels_of_samples(trained):
    _, made = trained
    np.testing.assert_array_equal(made.sample(4, labels=np.asarray([2, 0, 0, 1]))[:, 2], [2, 0, 0, 1])
    np.testing.assert_array_equal(np.bincount(made.sample(300, labels="balanced")[:, 2].astype(int)), [100] * 3)
    for labels in (np.asarray([0, 3]), np.asarray([-1, 0]), np.asarray([0.0, 1.0]), np.asarray([0]), "equal"):
        with pytest.raises(ValueError, match="labels"):
            made.sample(2, labels=labels)
    for number in (0, 2.5, "4"):
        with pytest.raises(ValueError, match="num_rows"):
            made.sample(number)


@pytest.mark.parametrize("styles", [3, 0])
@pytest.mark.long
def test_several_generators_are_one(styles, tmp_path):
    """The pool is a mixture in equal parts of generators that are trained alone, and its fit is that of its rows."""
    measured, network = _measured(_rows(20_000)), dataclasses.replace(SMALL, styles=styles)
    pool, seen = dataclasses.replace(QUICK, num_generators=2, num_cycles=2), []
    given = (measured.embedding, network)
    made = train_generator(
        jax.random.key(1), *given, pool, counts=measured.counts, progress=lambda *work: seen.append(work)
    )
    keys = jax.random.split(jax.random.key(1))
    alone = [
        train_generator(key, *given, dataclasses.replace(pool, num_generators=1), counts=measured.counts)
        for key in keys
    ]
    assert made.report.objective == alone[0].report.objective + alone[1].report.objective
    assert made.report.steps == (50, 100, 150, 200)
    assert seen == [(50, 200), (100, 200), (150, 200), (200, 200)]
    found, size = made.sample(20_000, seed=2), max(styles, 1)
    shares = np.exp(made.state["styles"]).reshape(3, 2, size)
    np.testing.assert_allclose(np.exp([one.state["styles"] for one in alone]), np.moveaxis(shares, 1, 0))
    of_all = mean_embedding(LABELLED, found.astype(float)).coordinates
    of_each = [mean_embedding(LABELLED, one.sample(20_000, seed=3).astype(float)).coordinates for one in alone]
    noise = np.sum((of_each[0] - mean_embedding(LABELLED, alone[0].sample(20_000).astype(float)).coordinates) ** 2)
    apart = np.sum(np.subtract(*of_each) ** 2)
    assert np.sum((of_all - np.mean(of_each, axis=0)) ** 2) < 2 * noise < 0.1 * apart
    # The squared distance from a mean of two is the mean of those from both, less a quarter of that between them.
    fits = [one.report.fit for one in alone]
    assert made.report.fit == pytest.approx(np.mean(fits) - apart / 4, abs=0.1 * apart)
    released = GeneratorRelease.create(made, measured)
    released.save(tmp_path / "published")
    again = GeneratorRelease.load(tmp_path / "published")
    assert again.generator.network == Pool(network, 2)
    np.testing.assert_array_equal(again.sample(50, seed=2), made.sample(50, seed=2))


@pytest.mark.parametrize(("network", "size"), [(SMALL, 0), (SMALL, 101), (SMALL, 2.0), (Pool(SMALL, 2), 2), (MLP, 2)])
def test_strange_pools_are_refused(network, size):
    """A folder of somebody else may hold one, which would take all memory."""
    with pytest.raises(ValueError, match=r"size must be|expected a network"):
        Pool(network, size)


@pytest.mark.long
def test_several_trainings_go_on_where_they_were(tmp_path):
    measured, training = _measured(_rows()), dataclasses.replace(QUICK, num_generators=2)
    given, calls = (jax.random.key(1), measured.embedding, SMALL, training), CallSettings(50, 0.0)
    whole, seen = train_generator(*given, counts=measured.counts), []

    class Stop(Exception):
        pass

    def stop(done, total):
        if done == 50:
            raise Stop

    public = {"counts": measured.counts, "checkpoint": str(tmp_path)}
    with pytest.raises(Stop):
        train_in_calls(*given, calls, **public, progress=stop)
    resumed = train_in_calls(*given, calls, **public, progress=lambda *work: seen.append(work))
    assert seen == [(50, 100), (100, 100)]
    assert resumed.report == whole.report
    for name, value in whole.state.items():
        np.testing.assert_array_equal(value, resumed.state[name])


@pytest.mark.long
@pytest.mark.parametrize("shares", [(0.5, 0.3, 0.2), (0.6, 0.38, 0.02)], ids=["common", "rare"])
def test_training_goes_on_where_it_was(shares, tmp_path):
    measured = _measured(_rows(shares=shares))
    training = Training(num_steps=75, num_cycles=2, batch_size=60)
    given = (jax.random.key(1), measured.embedding, SMALL, training)
    whole = train_generator(*given, counts=measured.counts)
    alone = train_generator(*given[:3], dataclasses.replace(training, borrow=False), counts=measured.counts)
    assert (alone.report == whole.report) == (shares[2] == 0.2)
    assert whole.report.steps == (50, 75, 125, 150)

    class Stop(Exception):
        pass

    calls = CallSettings(50, seconds_between_checkpoints=0.0)
    for stopped, rest in ((50, [50, 75, 125, 150]), (75, [75, 125, 150])):  # within a cycle, and between two

        def stop(done, total, stopped=stopped):
            if done == stopped:
                raise Stop

        folder, seen = str(tmp_path / str(stopped)), []
        with pytest.raises(Stop):
            train_in_calls(*given, calls, counts=measured.counts, checkpoint=folder, progress=stop)
        resumed = train_in_calls(
            *given, calls, counts=measured.counts, checkpoint=folder,
            progress=lambda done, total, seen=seen: seen.append(done),
        )  # fmt: skip
        assert seen == rest
        assert resumed.report == whole.report
        for name, value in whole.state.items():
            np.testing.assert_array_equal(value, resumed.state[name])
    with pytest.raises(ValueError, match="another training"):
        train_generator(jax.random.key(2), *given[1:], counts=measured.counts, checkpoint=folder)


@pytest.mark.parametrize(
    ("decay", "expected"),
    [(None, [1, (1 + math.cos(math.pi / 4)) / 2, 0.5]), (0.5, [1, 0.5, 0.25])],
    ids=["cosine", "steps"],
)
def test_every_cycle_has_the_same_learning_rates(decay, expected):
    training = Training(num_steps=40, num_cycles=2, learning_rate=0.2, decay=decay, decay_steps=10)
    at = [float(jax.jit(training.learning_rate_at)(jnp.int32(step))) for step in (0, 10, 20)]
    np.testing.assert_allclose(at, 0.2 * np.asarray(expected), rtol=1e-5)
    np.testing.assert_allclose(at, [float(training.learning_rate_at(step)) for step in (40, 50, 60)], rtol=1e-5)
    assert float(training.learning_rate_at(39)) < 0.2 * (0.01 if decay is None else 0.2)


@pytest.mark.long
def test_training_ends_where_it_would_fit_noise(tmp_path):
    """The discrepancy principle: in the second cycle where noise is large, not before the last where there is none."""
    training = Training(num_steps=40, num_cycles=3, batch_size=60)
    for epsilon, steps in ((0.1, (40, 80)), (100.0, (40, 80, 120))):
        sums, counts = mean_embedding(LABELLED, _rows()), mean_embedding(TableMap.of_codes(3), _rows()[:, -1:])
        measured = measure_labelled(jax.random.key(3), sums, counts, PrivacyBudget(epsilon, 1e-5))
        seen, folder = [], str(tmp_path / str(epsilon))
        for again in (False, True):  # a training that has ended is not gone on with
            with warnings.catch_warnings(record=True) as poor:
                warnings.simplefilter("always")
                report = train_generator(
                    jax.random.key(1), measured.embedding, SMALL, training, counts=measured.counts, checkpoint=folder,
                    progress=lambda *done, seen=seen: seen.append(done),
                ).report  # fmt: skip
            assert report.steps == steps
            assert bool(poor) == (epsilon > 1)
            assert (report.fit <= report.expected) == (epsilon < 1)
            ends = [*((step, 120) for step in steps[:-1]), (steps[-1], steps[-1])]
            assert seen == [*ends, ends[-1]] if again else ends


@pytest.mark.long
def test_a_training_that_diverges_says_so():
    measured = _measured(_rows(300))
    training = dataclasses.replace(QUICK, learning_rate=1e30)
    with pytest.raises(ValueError, match="lower the learning rate"):
        train_generator(jax.random.key(1), measured.embedding, SMALL, training)


@pytest.mark.parametrize("styles", [pytest.param(0, marks=pytest.mark.long), 4])
def test_the_objective_is_unbiased(styles):
    """Its mean over batches is ‖μ̃ − μ_G‖², whatever the size of a batch; with bias it is not."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(max(styles, 1), 200, 2)).astype(np.float32) + np.arange(max(styles, 1))[:, None, None]
    points = points.astype(np.float32)
    target = perturb(jax.random.key(0), mean_embedding(FOURIER, rng.normal(size=(500, 2))), BUDGET)
    shares = np.asarray([[1.0]]) if not styles else np.asarray([[0.4, 0.3, 0.2, 0.1]])
    features = np.asarray(compiled.features(FOURIER, points.reshape(-1, 2)), np.float64).reshape(len(points), 200, -1)
    truth = np.sum((target.coordinates - shares[0] @ features.mean(axis=1)) ** 2)

    def mean_of(unbiased, batch=4, draws=4000):
        training = Training(unbiased=unbiased)
        objective, num_blocks = objective_of(target, np.ones(1), training)
        assert num_blocks == 1
        chosen = rng.integers(200, size=(draws, len(points), batch))
        batches = np.stack([points[s][chosen[:, s]] for s in range(len(points))], axis=1).reshape(draws, -1, 2)
        values = jax.jit(jax.vmap(lambda rows: objective(rows, jnp.asarray(shares, jnp.float32), 0)))(batches)
        values = np.asarray(values, np.float64)
        return float(values.mean()), float(values.std()) / math.sqrt(draws)

    mean, error = mean_of(True)
    assert abs(mean - truth) < 5 * error + 1e-4
    biased, error = mean_of(False)
    assert biased > truth + 10 * error


def test_blocks_of_features_have_the_whole_as_their_mean():
    rows = _rows()
    measured = _measured(rows)
    points = jnp.asarray(rows[:60, :2], jnp.float32)
    styles = jnp.ones((3, 1))
    whole, one = objective_of(measured.embedding, np.full(3, 1 / 3), Training())
    parts, several = objective_of(measured.embedding, np.full(3, 1 / 3), Training(features_per_step=100))
    assert (one, several) == (1, 4)
    values = [float(jax.jit(parts)(points, styles, block)) for block in range(several)]
    assert np.mean(values) == pytest.approx(float(jax.jit(whole)(points, styles, 0)), rel=1e-4)


def test_rare_classes_count_alike_where_counts_are_measured():
    """[H] equation 18: the embedding of a class divided by its share."""
    shares = np.asarray([0.9, 0.09, 0.01])
    measured = _measured(_rows(shares=shares / shares.sum()))
    objective, _ = objective_of(measured.embedding, shares, Training())
    weighted = np.asarray(objective.weights) * shares**2
    np.testing.assert_allclose(weighted, 1 / 3, rtol=1e-5)


def test_shares_below_zero_become_small():
    feature_map = TableMap.of_codes(3)
    private = perturb(jax.random.key(0), mean_embedding(feature_map, np.zeros((1000, 1))), BUDGET)
    private = dataclasses.replace(private, coordinates=np.asarray([1.01, -0.02, 1e-5]))
    shares = class_shares(private, 3)
    np.testing.assert_allclose(shares, np.asarray([1.01, 1e-3, 1e-3]) / 1.012)
    with pytest.raises(ValueError, match="classes"):
        class_shares(private, 4)
    with pytest.raises(ValueError, match="marginal of the label"):
        class_shares(perturb(jax.random.key(0), mean_embedding(FOURIER, np.zeros((9, 2))), BUDGET), 3)


@pytest.mark.slow
def test_a_class_without_rows_is_not_visible():
    rows = _rows()
    rows = rows[rows[:, 2] < 2]
    measured = _measured(rows)
    made = train_generator(jax.random.key(1), measured.embedding, SMALL, QUICK, counts=measured.counts)
    assert made.sample(10, labels=np.full(10, 2)).shape == (10, 3)
    assert 0 < made.shares[2] < 0.02


@pytest.mark.parametrize("measure", ["simulated", "secure"])
@pytest.mark.parametrize(
    ("column", "value", "share"),
    [(3, 4.0, 0.25), (3, 0.5, 0.25), (2, 2.0, 0.25), (0, np.nan, 0.25), (slice(None), -1.0, 1)],
    ids=["label", "half", "code", "nan", "all"],
)
def test_rows_that_are_none_are_missing_from_the_counts(column, value, share, measure):
    """The same rows as from the embedding; one sees it by the noisy counts alone, with a warning."""
    rng = np.random.default_rng(3)
    rows = np.column_stack([rng.normal(size=4000), rng.normal(size=4000), *rng.integers(0, 2, (2, 4000))]).astype(float)
    features = LabelledMap(MixedMap(FourierMap.from_kernel(jax.random.key(1), Gaussian(1.0), 20, 2), (2,)), 2)
    rows[: int(share * 4000), column] = value

    def measured():
        if measure == "secure":
            return measure_generator(rows, features, budget=PrivacyBudget(3.0, 1e-5))
        counts = mean_embedding(TableMap.of_codes(2), class_labels(features, rows))
        budget = PrivacyBudget(3.0, 1e-5)
        return measure_labelled(jax.random.key(3), mean_embedding(features, rows), counts, budget)

    with pytest.warns(UserWarning, match="from 0 to 1, in the last column"):
        found = measured().counts
    assert abs(found.coordinates.sum() - (1 - share)) < 8 * math.sqrt(2) * found.mechanism.scale
    rows[:] = np.nan_to_num(np.abs(np.trunc(rows)).clip(0, 1))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        measured()
    assert not seen


def test_labels_to_count_raise_nothing_that_depends_on_a_value():
    """Of any kind of rows; a signalling NaN makes NumPy warn, and that would be an error for some."""
    rows = _rows(20)
    for kind in (np.float64, np.float32, np.uint8, list):
        some = rows.tolist() if kind is list else np.abs(rows).astype(kind)
        np.testing.assert_array_equal(class_labels(LABELLED, some)[:, 0], rows[:, 2])
    rows[3, 2] = np.array(0x7FF0000000000001, np.uint64).view(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = class_labels(LABELLED, rows)
    assert found[3] == -1
    np.testing.assert_array_equal(np.delete(found, 3, axis=0), np.delete(rows[:, 2:], 3, axis=0))
    with pytest.raises(ValueError, match="expected 3 columns"):
        class_labels(LABELLED, rows[:, :2])


@pytest.mark.long
def test_generators_are_of_the_rows_that_are_covered():
    """A quarter of each class missing, and hardly any noise: else ‖μ̃ − μ_G‖² would be (1/4)² ‖μ‖² or more."""
    rows = _rows()
    rows[::4, 0] = np.nan
    sums = mean_embedding(LABELLED, rows)
    counts = mean_embedding(TableMap.of_codes(3), class_labels(LABELLED, rows))
    with pytest.warns(UserWarning, match=r"add up to 0\.75"):
        measured = measure_labelled(jax.random.key(3), sums, counts, PrivacyBudget(300.0, 1e-5))
    made = train_generator(jax.random.key(5), measured.embedding, SMALL, LONG, counts=measured.counts)
    assert made.report.fit < 0.2 * np.sum(sums.coordinates**2) / 16
    sigma = measured.embedding.mechanism.scale
    assert made.report.expected == pytest.approx(sums.coordinates.size * (sigma / 0.75) ** 2, rel=1e-2)


@pytest.mark.long
def test_a_poor_fit_says_so():
    measured = _measured(_rows())
    given = (jax.random.key(1), measured.embedding, SMALL, dataclasses.replace(QUICK, num_steps=3))
    with pytest.warns(UserWarning, match="after 3 steps"):
        made = train_generator(*given, counts=measured.counts)
    assert not made.report.converged
    assert made.report.fit > 2 * made.report.expected


def test_batches_are_measured_as_an_array_is():
    rows, budget = _rows(500), PrivacyBudget(1000.0, 1e-5)
    source = open_rows(lambda: np.array_split(rows, 7), num_rows=500, num_columns=rows.shape[1])
    ours, of_array = (measure_generator(given, LABELLED, budget=budget) for given in (source, rows))
    for of_batches, expected in ((ours.embedding, of_array.embedding), (ours.counts, of_array.counts)):
        assert of_batches.mechanism == expected.mechanism
        assert np.abs(of_batches.coordinates - expected.coordinates).max() < 12 * expected.mechanism.scale


@pytest.mark.parametrize("measure", ["simulated", "secure"])
@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize(("scale", "epsilon", "warns"), [(1.0, 2.0, False), (1e2, 1e3, True), (1.0, 1e-3, True)])
def test_an_embedding_that_looks_like_noise_says_so(scale, epsilon, warns, labelled, measure):
    """Rows that are all far apart for the kernel, with hardly any noise, and more noise than the rows have to say."""
    rows, budget = _rows(2000) * [scale, scale, 1], PrivacyBudget(epsilon, 1e-5)
    rows, features = (rows, LABELLED) if labelled else (rows[:, :2], FOURIER)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if measure == "secure":
            measure_generator(rows, features, budget=budget)
        else:
            counts = mean_embedding(TableMap.of_codes(3), class_labels(features, rows)) if labelled else None
            measure_labelled(jax.random.key(0), mean_embedding(features, rows), counts, budget)
    assert [str(warning.message)[:43] for warning in seen] == ["the noisy embedding looks like noise alone,"] * warns


@pytest.mark.long
def test_warnings_that_are_errors_lose_nothing(tmp_path):
    """Neither a measurement, whose budget is spent, nor what was trained."""
    rows, ledger = _rows(2000), Ledger(tmp_path / "ledger.jsonl")
    rows[::2, 2] = 3
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        measured = measure_generator(rows, LABELLED, budget=PrivacyBudget(2.0, 1e-5), spending=Spending(ledger, "rows"))
        training = dataclasses.replace(QUICK, num_steps=3)
        made = train_generator(jax.random.key(1), measured.embedding, SMALL, training, counts=measured.counts)
    error = math.sqrt(3) * measured.counts.mechanism.scale
    assert abs(covered_share(measured.counts) - 0.5) < 8 * error < 0.4
    assert made.measured == digest(measured.embedding)
    assert len(ledger.spent("rows")) == 1


@pytest.mark.long
def test_mixed_rows_are_numbers_and_codes():
    rng = np.random.default_rng(0)
    codes = rng.choice(3, 4000, p=[0.7, 0.2, 0.1])
    numbers = np.clip(0.2 + 0.3 * (codes == 0)[:, None] + 0.05 * rng.normal(size=(4000, 2)), 0, 1)
    rows = np.concatenate([numbers, codes[:, None], rng.integers(2, size=(4000, 1))], axis=1)
    features = MixedMap(FourierMap.from_kernel(jax.random.key(1), Gaussian(8.0), 400, 2), (3, 2))
    made = dp_merf(
        jax.random.key(2), rows, features, SMALL,
        Training(num_steps=500, num_cycles=1, batch_size=100, learning_rate=1e-2),
        budget=PrivacyBudget(5.0, 1e-5), bounds=(0.0, 1.0), levels=100,
    )  # fmt: skip
    sample = made.sample(4000)
    assert sample.shape == (4000, 4)
    assert set(np.unique(sample[:, 2])) <= {0, 1, 2}
    assert set(np.unique(sample[:, 3])) <= {0, 1}
    np.testing.assert_allclose(100 * sample[:, :2], np.rint(100 * sample[:, :2]), atol=1e-4)
    np.testing.assert_allclose(np.bincount(sample[:, 2].astype(int)) / 4000, [0.7, 0.2, 0.1], atol=0.06)
    np.testing.assert_allclose(sample[:, :2].mean(axis=0), rows[:, :2].mean(axis=0), atol=0.03)
    with pytest.raises(ValueError, match="none"):
        made.sample(5, labels="balanced")


@pytest.mark.parametrize(
    ("network", "num_labels"),
    [
        pytest.param(
            Convolutional(8, 12, hidden=10, channels=(2, 3), size=3, code=2, styles=3), 2, marks=pytest.mark.long
        ),
        pytest.param(SmoothImages(8, 12, widths=(10,), code=2, styles=3), 2, marks=pytest.mark.long),
        pytest.param(MLP(widths=(), code=2, styles=0), 0, marks=pytest.mark.long),
    ],
    ids=repr,
)
def test_networks_of_images(network, num_labels):
    size = getattr(network, "height", 8) * getattr(network, "width", 8)
    rows = np.random.default_rng(0).uniform(size=(50, size))
    features = FourierMap.from_kernel(jax.random.key(1), Gaussian(0.05), 100, size)
    if num_labels:
        rows, features = np.concatenate([rows, np.arange(50)[:, None] % 2], axis=1), LabelledMap(features, 2)
    made = dp_merf(
        jax.random.key(2), rows, features, network, Training(num_steps=3, num_cycles=1, batch_size=8),
        budget=PrivacyBudget(1.0, 1e-3), bounds=(0.0, 1.0), levels=255,
    )  # fmt: skip
    sample = made.sample(20)
    assert sample.shape == (20, rows.shape[1])
    pixels = sample[:, :size]
    assert ((pixels >= 0) & (pixels <= 1)).all()
    assert len(np.unique(pixels, axis=0)) > 10
    np.testing.assert_allclose(255 * pixels, np.rint(255 * pixels), atol=1e-3)
    without = made.sample(20, noise=False)
    np.testing.assert_array_equal(without[:, size:], sample[:, size:])
    if not isinstance(network, SmoothImages):
        np.testing.assert_array_equal(without, sample)
        return
    # Blurred with a standard deviation of a pixel and not near their bounds: neighbours are alike, as with noise they
    # are not.
    rough = [np.abs(np.diff(some[:, :size].reshape(-1, network.width))).mean() for some in (without, sample)]
    assert rough[0] < rough[1] / 2


@pytest.mark.long
def test_convolutions_make_images():
    """One of each code: different codes are different images, in whatever batch they are."""
    network = Convolutional(8, 12, hidden=10, channels=(2, 3), size=3, code=2, styles=3)
    module = network.build(2, 8 * 12, nnx.Rngs(0))
    module.eval()
    inputs = np.random.default_rng(0).normal(size=(6, 2 + 3 + 2)).astype(np.float32)
    call = nnx.jit(lambda module, inputs: module(inputs))
    images = np.asarray(call(module, inputs))
    assert images.shape == (6, 8 * 12)
    assert np.isfinite(images).all()
    assert np.linalg.norm(images[:, None] - images[None], axis=2)[~np.eye(6, dtype=bool)].min() > 1e-4
    others = np.asarray(call(module, np.concatenate([inputs[:2], 5 * inputs[2:] + 1])))
    np.testing.assert_allclose(others[:2], images[:2], atol=1e-4)
    assert np.abs(others[2:] - images[2:]).max() > 1e-3


def test_what_cannot_be_is_refused():
    rows = _rows(300)
    measured = _measured(rows)
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="multiples of 4"):
        Convolutional(30, 28)
    with pytest.raises(ValueError, match="rows of 2 columns"):
        train_generator(key, measured.embedding, Convolutional(), QUICK)
    with pytest.raises(ValueError, match="rows of 2 columns"):
        train_generator(key, measured.embedding, SmoothImages(), QUICK)
    unlabelled = perturb(key, mean_embedding(FOURIER, rows[:, :2]), BUDGET)
    with pytest.raises(ValueError, match="no label"):
        train_generator(key, unlabelled, SMALL, QUICK, counts=measured.counts)
    with pytest.raises(ValueError, match="below its upper"):
        train_generator(key, measured.embedding, SMALL, QUICK, bounds=(1.0, 0.0))
    with pytest.raises(ValueError, match="for 2 columns"):
        train_generator(key, measured.embedding, SMALL, QUICK, bounds=([0.0] * 3, 1.0))
    with pytest.raises(ValueError, match="give bounds"):
        train_generator(key, measured.embedding, SMALL, QUICK, levels=255)
    with pytest.raises(ValueError, match="features of numbers"):
        train_generator(key, measured.counts, SMALL, QUICK)
    with pytest.raises(ValueError, match="count_share"):
        dp_merf(key, rows, LABELLED, SMALL, QUICK, budget=PrivacyBudget(1.0, 1e-3), count_share=1.0)
    for wrong in (
        {"num_steps": 0},
        {"num_generators": 101},
        {"num_cycles": 0},
        {"num_steps": 2.5},
        {"num_steps": True},
        {"batch_size": 0},
        {"learning_rate": 0.0},
        {"decay": 1.5},
        {"features_per_step": 3},
        {"features_per_step": 4.0},
        {"learning_rate": "fast"},
        {"decay": "slow"},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Training(**wrong)
    wrong_sizes = ({"code": 0}, {"code": 1.5}, {"styles": -1}, {"styles": 2.5}, {"styles": None})
    for wrong in (*wrong_sizes, {"widths": (0,)}, {"widths": 50}, {"widths": [50, 50]}):
        with pytest.raises(ValueError, match=r"1 or more"):
            MLP(**wrong)
    points = SubspaceMap.from_points(Gaussian(0.5), rows[:5, :2])
    with pytest.raises(ValueError, match="SubspaceMap"):
        train_generator(key, perturb(key, mean_embedding(points, rows[:, :2]), BUDGET), SMALL, QUICK)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bounds": 1.0}, r"bounds: expected a lower and an upper bound, such as \(0, 1\), got 1.0"),
        ({"bounds": (0, 1, 2)}, "bounds: expected a lower and an upper bound"),
        ({"bounds": "01"}, "bounds: expected a lower and an upper bound"),
        ({"bounds": (0, "one")}, "bounds: expected a lower and an upper bound"),
        # A generator with such levels could be saved, and not loaded.
        ({"bounds": (0, 1), "levels": -1}, "levels must be at least 0, got -1"),
        ({"bounds": (0, 1), "levels": 2.5}, "levels must be a whole number, got 2.5"),
        ({"network": MLP}, r"network: expected a Network, such as MLP\(\), got MLP"),
        ({"training": 100}, r"training: expected a Training, such as Training\(\), got int"),
    ],
)
def test_arguments_of_another_type_are_refused_in_one_line(changes, message):
    given = {"network": SMALL, "training": QUICK} | changes
    embedding = perturb(jax.random.key(0), mean_embedding(LABELLED, _rows(10)), BUDGET)
    with pytest.raises(ValueError, match=message):
        train_generator(jax.random.key(0), embedding, **given)


@pytest.mark.parametrize("features", [None, Gaussian(0.5), "fourier"])
def test_what_is_no_feature_map_is_refused_before_anything_is_spent(features):
    with pytest.raises(ValueError, match="features: expected a feature map, such as a FourierMap or a LabelledMap"):
        measure_generator(_rows(100), features, budget=BUDGET)


def test_a_checkpoint_is_a_folder(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    embedding = perturb(jax.random.key(0), mean_embedding(LABELLED, _rows(10)), BUDGET)
    with pytest.raises(ValueError, match="is a file, and checkpoints need a folder"):
        train_generator(jax.random.key(0), embedding, SMALL, QUICK, checkpoint=str(file))


def test_an_error_has_a_line_to_copy(trained, tmp_path):
    measured, made = trained
    folder = GeneratorRelease.create(made, measured).save(tmp_path / "folder")
    with pytest.raises(ReleaseError, match=re.escape(f"kme_jax.load({str(folder)!r}).sample(1000) makes rows")):
        GeneratorMeasurement.load(folder)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "a", True])
def test_a_seed_of_a_sample_is_a_whole_number(trained, seed):
    with pytest.raises(ValueError, match="seed must be"):
        trained[1].sample(5, seed=seed)


class Twice(nnx.Linear):
    """A layer that returns its values two times."""

    def __call__(self, inputs):
        return super().__call__(inputs), super().__call__(inputs)


@dataclasses.dataclass(frozen=True)
class OwnNetwork(Network):
    """A network from outside: one linear layer. It can have dropout, and more outputs or inputs than it should have."""

    dropout: bool = False
    twice: bool = False
    surplus: int = 0
    unknown: int = 0
    code: int = 2
    styles: int = 3

    def num_normals(self, num_outputs):
        return self.code

    def build(self, num_labels, num_outputs, rngs):
        num_inputs = self.unknown + self.code + self.styles + num_labels
        layer = (Twice if self.twice else nnx.Linear)(num_inputs, num_outputs + self.surplus, rngs=rngs)
        return nnx.Sequential(layer, nnx.Dropout(0.1, rngs=rngs)) if self.dropout else layer


@pytest.mark.long
def test_a_network_from_outside_is_trained():
    measured = _measured(_rows(300))
    assert train_generator(jax.random.key(0), measured.embedding, OwnNetwork(), QUICK).sample(4).shape == (4, 3)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (OwnNetwork(dropout=True), "such as Dropout"),
        (
            OwnNetwork(unknown=2),
            r"OwnNetwork fails with inputs of shape \[2, 8\], those of num_normals",
        ),
        (OwnNetwork(twice=True), "OwnNetwork turns inputs into a tuple, expected one array"),
        (OwnNetwork(surplus=1), r"values of shape \[2, 3\], expected \[2, 2\]"),
        pytest.param(OwnNetwork(surplus=-1), r"values of shape \[2, 1\], expected \[2, 2\]", marks=pytest.mark.slow),
    ],
)
def test_a_network_from_outside_that_does_not_fit_is_refused_before_training(network, message):
    measured = _measured(_rows(300))
    with pytest.raises(ValueError, match=message):
        train_generator(jax.random.key(0), measured.embedding, network, dataclasses.replace(QUICK, num_steps=10**6))


@pytest.mark.long
def test_lattice_features_do_too():
    lattice = LatticeMap.from_box(Gaussian(0.5), [-4.0, -4.0], [4.0, 4.0])
    made = dp_merf(jax.random.key(0), _rows(), LabelledMap(lattice, 3), SMALL, QUICK, budget=PrivacyBudget(1.0, 1e-4))
    assert np.isfinite(made.sample(10)).all()


class TestPrivacy:
    def test_training_takes_nothing_private(self):
        for function in (train_generator, class_shares):
            kinds = {str(p.annotation) for p in inspect.signature(function).parameters.values()}
            assert not any("MeanEmbedding" in kind or kind == "np.ndarray" for kind in kinds)

    # Of the second map the diameter may fail.
    @pytest.mark.parametrize("num_features", [400, pytest.param(20_000, marks=pytest.mark.slow)])
    def test_shares_of_the_budget_add_up(self, num_features):
        features = LabelledMap(FourierMap.from_kernel(jax.random.key(1), Gaussian(0.5), num_features, 2), 3)
        rows = _rows(1000)
        counts = mean_embedding(TableMap.of_codes(3), rows[:, -1:])
        both = measure_labelled(jax.random.key(0), mean_embedding(features, rows), counts, BUDGET, count_share=0.1)
        parts = both.embedding.mechanism, both.counts.mechanism
        mu = math.sqrt(sum((part.sensitivity / part.scale) ** 2 for part in parts))
        assert both.composition.mu == pytest.approx(mu)
        assert gaussian_delta(1 / mu, 2.0) + features.failure_probability <= 1e-5
        assert gaussian_delta(1 / mu, 2.0) == pytest.approx(1e-5, rel=1e-4)
        assert parts[1].mu ** 2 / mu**2 == pytest.approx(0.1, rel=1e-3)
        assert all(part.epsilon < 2.0 for part in parts)
        with pytest.raises(ValueError, match=r"spend more than \(ε, δ\)"):
            Composition.of([*parts, parts[1]], BUDGET)
        secure = measure_generator(rows, features, budget=PrivacyBudget(1.0, 1e-5))
        with pytest.raises(ValueError, match="all continuous or all discrete"):
            Composition.of([parts[0], secure.counts.mechanism], BUDGET)

    def test_noise_has_the_scale_that_it_says(self):
        rows = _rows(1000)
        truth = mean_embedding(LABELLED, rows).coordinates
        simulated = _measured(rows)
        secure = measure_generator(rows, LABELLED, budget=PrivacyBudget(2.0, 1e-5))
        for measured in (simulated, secure):
            errors = (measured.embedding.coordinates - truth) / measured.embedding.mechanism.scale
            # The secure noise has no seed: six standard errors of the root mean square of so many normals.
            assert np.sqrt(np.mean(errors**2)) == pytest.approx(1, abs=6 / math.sqrt(2 * errors.size))
            shares = np.bincount(rows[:, 2].astype(int)) / len(rows)
            assert np.abs(measured.counts.coordinates - shares).max() < 8 * measured.counts.mechanism.scale
        assert secure.composition.secure
        assert not simulated.composition.secure

    def test_the_statement_has_the_bounds_without_being_told(self, trained, monkeypatch):
        measured = measure_generator(_rows(300), LABELLED, budget=PrivacyBudget(2.0, 1e-5))
        own = digest(measured.embedding)

        def no_training(key, embedding, network, training, *, bounds, **options):
            rows = Rows.create(FOURIER, bounds, 0)
            return dataclasses.replace(trained[1], rows=rows, measured=own)

        monkeypatch.setattr("kme_jax.generators.release.train_generator", no_training)

        def inputs(**options):
            return measured.synthesise(SMALL, QUICK, **options).statement["public_inputs"]

        assert inputs() == ["kernel", "frequencies"]
        assert inputs(bounds=(-3.0, 3.0)) == ["kernel", "frequencies", "bounds"]
        assert inputs(bounds=(-3.0, 3.0), public_inputs=("bounds of x",)) == ["kernel", "frequencies", "bounds of x"]
        for wrong in ("bounds", [1.0]):
            with pytest.raises(ValueError, match="expected names"):
                measured.synthesise(SMALL, QUICK, public_inputs=wrong)

    def test_a_published_generator(self, tmp_path, capsys):
        ledger = Ledger(tmp_path / "ledger.jsonl")
        rows = _rows(2000)
        measured = measure_generator(rows, LABELLED, budget=PrivacyBudget(2.0, 1e-5), spending=Spending(ledger, "rows"))
        with pytest.raises(ValueError, match="was released before"):
            measure_generator(rows, LABELLED, budget=PrivacyBudget(2.0, 1e-5), spending=Spending(ledger, "rows"))
        made = train_generator(jax.random.key(1), measured.embedding, SMALL, QUICK, counts=measured.counts)
        folder = GeneratorRelease.create(made, measured, ("bounds",)).save(tmp_path / "published")
        loaded = GeneratorRelease.load(folder).generator
        assert loaded.network == made.network
        assert loaded.report == made.report
        np.testing.assert_array_equal(loaded.sample(50, seed=3), made.sample(50, seed=3))
        statement = measured.statement
        import jsonschema

        jsonschema.validate(statement, schema())
        assert statement["private"]
        assert (statement["epsilon"], statement["delta"]) == (2.0, 1e-5)
        assert [part["name"] for part in statement["measurements"]] == ["embedding", "counts of the classes"]
        assert "LabelledIntegers" in statement["measurements"][0]["feature_map"]["proof"]
        with pytest.raises(ReleaseError, match="exists"):
            GeneratorRelease.create(made, measured).save(folder)
        assert {"kernel", "frequencies"} <= set(statement["public_inputs"])
        assert cli.main(["show", str(folder)]) == 0
        text = capsys.readouterr().out
        assert "(2, 1e-05)-differential privacy" in text
        assert "A generator, MLP, shares of the classes 0." in text
        assert cli.main(["evaluate", str(folder), "--against=rows.csv"]) == 2
        assert "kme_jax.load" in capsys.readouterr().err
        # A statement of another measurement would be wrong.
        with pytest.raises(ValueError, match="not trained on this"):
            GeneratorRelease.create(made, measure_generator(rows, LABELLED, budget=PrivacyBudget(1.0, 1e-5)))
        with pytest.raises(ValueError, match="not trained on this"):
            GeneratorRelease.create(made, _measured(rows))
        text = (folder / "privacy.json").read_text()
        (folder / "privacy.json").write_text(text.replace('"epsilon": 2.0', '"epsilon": 1.0', 1))
        with pytest.raises(ReleaseError, match="not the file that manifest"):
            GeneratorRelease.load(folder)
        (folder / "privacy.json").write_text(text)
        (folder / "generator.npz").write_bytes(b"no")
        with pytest.raises(ReleaseError, match="damaged"):
            GeneratorRelease.load(folder)

    def test_a_measurement_is_kept_before_training(self, tmp_path):
        ledger, rows = Ledger(tmp_path / "ledger.jsonl"), _rows(2000)
        once = arguments(delta=1e-5, ledger=ledger, database="rows")
        again = arguments(delta=1e-5, ledger=ledger, database="rows", allow_repeat=True)
        measure_generator(rows, LABELLED, **once)
        measured = measure_generator(rows, LABELLED, **again, folder=tmp_path / "measured")
        loaded = GeneratorMeasurement.load(tmp_path / "measured")
        np.testing.assert_array_equal(loaded.embedding.coordinates, measured.embedding.coordinates)
        assert loaded.counts.mechanism == measured.counts.mechanism
        assert loaded.composition == measured.composition
        one, same = (
            train_generator(jax.random.key(1), found.embedding, SMALL, QUICK, counts=found.counts)
            for found in (measured, loaded)
        )
        np.testing.assert_array_equal(one.sample(20), same.sample(20))
        statement = json.loads((tmp_path / "measured" / "privacy.json").read_text())
        assert statement["total"]["releases"] == 2
        assert statement["total"]["epsilon"] > 1.3
        with pytest.raises(ReleaseError, match="exists"):
            measure_generator(rows, LABELLED, **again, folder=tmp_path / "measured")
        with pytest.raises(ValueError, match="count_share"):
            measure_generator(rows, LABELLED, **again, count_share=0.0)
        with pytest.raises(ValueError, match="below 1/N"):
            measure_generator(rows, LABELLED, **(again | {"budget": PrivacyBudget(1.0, 1e-3)}))
        assert len(ledger.spent("rows")) == 2

    @pytest.mark.slow
    def test_maps_that_may_fail_are_in_the_ledger_with_what_they_may(self, tmp_path):
        ledger = Ledger(tmp_path / "ledger.jsonl")
        features = LabelledMap(FourierMap.from_kernel(jax.random.key(1), Gaussian(0.5), 20_000, 2), 3)
        measure_generator(_rows(1000), features, budget=PrivacyBudget(1.0, 1e-6), spending=Spending(ledger, "rows"))
        (spent,) = ledger.spent("rows")
        assert spent.failure_probability == features.failure_probability == 1e-10

    def test_simulated_noise_says_so(self, tmp_path):
        measured = _measured(_rows(500))
        statement = measured.statement
        assert GeneratorMeasurement.load(measured.save(tmp_path / "measured")).statement == statement
        assert not statement["private"]
        assert statement["rho"] is None
        assert statement["groups"][0]["epsilon"] < statement["groups"][1]["epsilon"]


@pytest.mark.long
def test_the_examples_of_the_guide_run(tmp_path, monkeypatch, capsys):
    guide = (pathlib.Path(__file__).parent.parent / "docs" / "guides" / "generators.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    chosen = [
        block
        for block in blocks
        if "dp_merf(" in block
        or "GeneratorRelease" in block
        or ("synthesise(" in block and "measure_generator" in block)
        or 'load("measured")' in block
    ]
    assert len(chosen) == 3
    monkeypatch.chdir(tmp_path)
    variables = {}
    exec(chosen[0].replace("num_steps=500, num_cycles=4", "num_steps=400, num_cycles=2"), variables)
    assert variables["synthetic"].shape == (1000, 3)
    last, expected = map(float, capsys.readouterr().out.split())
    assert last < 3 * expected
    for label in range(3):  # the rows are N(label, 0.3²)
        some = variables["synthetic"][variables["synthetic"][:, 2] == label, :2]
        np.testing.assert_allclose(some.mean(axis=0), label, atol=0.2)
    variables["training"] = dataclasses.replace(variables["training"], num_steps=50, num_cycles=1)
    exec(chosen[1], variables)
    assert variables["synthetic"].shape == (1000, 3)
    exec(chosen[2].replace("num_steps=1000, num_cycles=8", "num_steps=60, num_cycles=1"), variables)
    assert variables["longer"] == Training(num_steps=60, num_cycles=1)
    assert variables["again"].generator.measured == variables["released"].generator.measured
    assert variables["again"].sample(10).shape == (10, 3)
