"""Features of transformed rows: definition, diameter, integers, generators."""

import functools
import importlib
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kme_jax import (
    FourierMap,
    Gaussian,
    GaussianSum,
    LabelledMap,
    PrivacyBudget,
    SubspaceMap,
    dp_merf,
    integer_embedding,
    load,
    mean_embedding,
)
from kme_jax.feature_maps import OrientedEdges, TransformedMap
from kme_jax.feature_maps.transformed import transformed
from kme_jax.generators import SmoothImages, Training, measure_generator
from kme_jax.generators.objective import objective_of
from kme_jax.privacy import perturb
from tests import compiled

EDGES = OrientedEdges(height=8, width=12, cells=2, blur=0.7, weight=3.0)
OUTPUTS = EDGES.num_outputs


@functools.cache
def _map(num_features=100):
    gammas = np.zeros((2, OUTPUTS))
    gammas[0, : EDGES.num_pixels], gammas[1, EDGES.num_pixels :] = 0.1, 2.0
    return TransformedMap(FourierMap.from_kernel(jax.random.key(1), GaussianSum(gammas), num_features, OUTPUTS), EDGES)


@functools.cache
def _labelled():
    return LabelledMap(_map(), 3)


def _rows(num_rows, seed=0, labels=0):
    rng = np.random.default_rng(seed)
    rows = rng.uniform(size=(num_rows, EDGES.dim)).astype(np.float32)
    return np.column_stack([rows, rng.integers(labels, size=num_rows)]).astype(np.float32) if labels else rows


class TestEdges:
    def test_an_edge_is_where_it_is_and_points_where_it_points(self):
        image = np.zeros((8, 12), np.float32)
        image[:, 6:] = 1  # brighter to the right
        values = np.asarray(EDGES(image.reshape(1, -1)))[0]
        edges = values[EDGES.num_pixels :].reshape(8, 2, 2)
        middle = edges.sum(axis=(1, 2))
        assert np.argmax(middle) == 0
        assert middle[4] < 0.5 * middle[0]  # only the border of the image is an edge to the left
        turned = np.asarray(EDGES(image[:, ::-1].reshape(1, -1)))[0][EDGES.num_pixels :].reshape(8, 2, 2)
        assert np.argmax(turned.sum(axis=(1, 2))) == 4
        below = np.zeros((8, 12), np.float32)
        below[4:] = 1
        assert np.argmax(np.asarray(EDGES(below.reshape(1, -1)))[0][EDGES.num_pixels :].reshape(8, -1).sum(1)) == 2

    def test_a_shift_changes_edges_less_than_pixels(self):
        rng, transform = np.random.default_rng(0), OrientedEdges()
        blurred = np.asarray(OrientedEdges(blur=2.0)(rng.uniform(size=(20, 784)).astype(np.float32)))[:, :784]
        images = (blurred > np.median(blurred, axis=1, keepdims=True)).astype(np.float32).reshape(-1, 28, 28)
        here, there = (np.asarray(transform(some.reshape(20, -1))) for some in (images, np.roll(images, 1, axis=2)))

        def moved(columns):
            others = np.roll(here[:, columns], 1, axis=0)
            return np.sum((there - here)[:, columns] ** 2) / np.sum((others - here[:, columns]) ** 2)

        assert moved(slice(784, None)) < 0.5 * moved(slice(0, 784))

    def test_outputs_are_within_the_gain(self):
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(200, EDGES.dim)).astype(np.float32)
        worst = np.ones((1, EDGES.dim), np.float32)
        for rows in (signs, worst, 1e6 * signs):
            assert np.abs(np.asarray(EDGES(rows))).max() <= EDGES.gain * np.abs(rows).max()

    @pytest.mark.parametrize(("height", "width"), [(1, 6), (6, 1), (1, 1)])
    def test_a_line_of_pixels_has_no_slope_across(self, height, width):
        transform = OrientedEdges(height, width, directions=4, cells=1)
        image = np.zeros((1, height * width), np.float32)
        image[:, height * width // 2 :] = 1
        right, down, left, up = np.asarray(transform(image))[0, -4:]
        if height == 1:
            assert max(down, up) < 1e-6
            assert right > 0 or width == 1
        if width == 1:
            assert max(right, left) < 1e-6
            assert down > 0 or height == 1

    @pytest.mark.parametrize(
        "wrong",
        [
            {"cells": 0}, {"edge": 0.0}, {"edge": 0.02}, {"edge": 1e9}, {"weight": math.inf}, {"weight": 1e300},
            {"blur": -1.0}, {"blur": 1e9},
        ],
    )  # fmt: skip
    def test_what_cannot_be_is_refused(self, wrong):
        with pytest.raises(ValueError, match="must be"):
            OrientedEdges(**wrong)


@pytest.mark.long
def test_inner_products_are_the_kernel():
    rows, features = _rows(20), _map(20_000)
    values = np.asarray(compiled.features(features, rows))
    kernel = np.asarray(compiled.pairwise(features.kernel, rows, rows))
    np.testing.assert_allclose(values @ values.T, kernel, atol=0.05)
    np.testing.assert_allclose(kernel, compiled.one_by_one(features.kernel, rows, rows), atol=1e-5)
    assert kernel.min() < 0.9
    outputs = transformed(EDGES, rows)
    np.testing.assert_allclose(values, compiled.features(features.features, outputs), atol=1e-4)


def test_no_two_rows_are_further_apart_than_the_diameter():
    rows = np.concatenate([_rows(200), 100 * _rows(200, 1)])
    values = np.asarray(compiled.features(_map(), rows), np.float64)
    squares = np.sum(values**2, axis=1)
    distances = squares[:, None] + squares[None] - 2 * values @ values.T
    assert math.sqrt(distances.max()) <= _map().diameter * (1 + 1e-6)
    assert _map().diameter == _map().features.diameter == _map().certain_diameter
    assert _labelled().diameter == _map().features.diameter


def test_sums_are_those_of_the_features():
    rows = _rows(300, labels=3)
    expected = np.asarray(compiled.features(_labelled(), rows), np.float64).sum(axis=0)
    np.testing.assert_allclose(mean_embedding(_labelled(), rows).coordinates * 300, expected, atol=1e-3)
    embedding = integer_embedding(_labelled(), rows)
    integers = embedding.integer_map
    found = integers.released(embedding.total) / integers.units
    np.testing.assert_allclose(found, expected, atol=0.6 * 300 / integers.units + 1e-2)


def test_integers_depend_on_their_row_alone():
    rows = _rows(70, labels=3)
    whole = integer_embedding(_labelled(), rows)
    np.testing.assert_array_equal(whole.total, integer_embedding(_labelled(), rows[::-1]).total)
    each = np.stack([integer_embedding(_labelled(), row[None]).total for row in rows[:8]])
    np.testing.assert_array_equal(integer_embedding(_labelled(), rows[:8]).total, each.sum(axis=0))
    integers = whole.integer_map
    for one, other in itertools.combinations(each, 2):
        assert np.linalg.norm(one - other) <= integers.diameter
    assert max(np.linalg.norm(one) for one in each) <= integers.norm_bound


def test_a_row_is_transformed_alike_wherever_it_is():
    rows = _rows(9)
    outputs = transformed(EDGES, rows)
    assert outputs.shape == (9, OUTPUTS)
    np.testing.assert_array_equal(transformed(EDGES, rows[::-1]), outputs[::-1])
    np.testing.assert_array_equal(transformed(EDGES, rows[3:4]), outputs[3:4])
    np.testing.assert_array_equal(transformed(EDGES, rows[:0]), np.zeros((0, OUTPUTS)))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38])
def test_rows_that_are_not_covered_count_as_nothing(value):
    good = _rows(6)
    bad = good.copy()
    bad[2, 5] = value
    np.testing.assert_array_equal(_map().covers(bad), np.arange(6) != 2)
    without = np.delete(good, 2, axis=0)
    np.testing.assert_array_equal(integer_embedding(_map(), bad).total, integer_embedding(_map(), without).total)
    np.testing.assert_allclose(
        mean_embedding(_map(), bad).coordinates * 6, mean_embedding(_map(), without).coordinates * 5, atol=1e-6
    )


def test_rows_at_the_bound_have_features_within_the_norm():
    rows = np.full((2, EDGES.dim), 0.99 * _map().row_bound, np.float32)
    assert _map().covers(rows).all()
    total = integer_embedding(_map(), rows).total
    assert np.linalg.norm(total) <= 2 * _map().integers(2).norm_bound


def test_sums_within_the_transform_do_not_overflow():
    edges = OrientedEdges(height=2, width=2, cells=1, edge=0.1, weight=0.1)
    kernel = GaussianSum(np.full((1, edges.num_outputs), 0.5))
    fourier = FourierMap.from_kernel(jax.random.key(0), kernel, 10, edges.num_outputs, dtype=np.float64)
    features = TransformedMap(fourier, edges)
    rows = 0.999 * features.row_bound * np.array([[-1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, -1.0]])
    assert features.covers(rows).all()
    assert np.isfinite(transformed(edges, rows)).all()


def test_the_proof_is_where_the_statement_says():
    noisy = perturb(jax.random.key(0), mean_embedding(_map(), _rows(60)), PrivacyBudget(1.0, 1e-3))
    module, name, attribute = noisy.feature_map.proof.rsplit(".", 2)
    assert "Formal guarantee" in getattr(getattr(importlib.import_module(module), name), attribute).__doc__


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="columns, and the transform has"):
        TransformedMap(FourierMap.from_kernel(jax.random.key(0), Gaussian(1.0), 10, 3), EDGES)
    subspace = SubspaceMap.from_points(Gaussian(0.5), np.zeros((1, OUTPUTS)))
    with pytest.raises(ValueError, match="needs a FourierMap, got a SubspaceMap"):
        TransformedMap(subspace, EDGES)


class TestGenerators:
    def test_blocks_of_features_have_the_whole_as_their_mean(self):
        noisy = perturb(jax.random.key(0), mean_embedding(_labelled(), _rows(60, labels=3)), PrivacyBudget(1.0, 1e-3))
        shares, styles, relaxed = np.full(3, 1 / 3), jnp.ones((3, 1)), jnp.asarray(_rows(12, 5))
        whole, _ = objective_of(noisy, shares, Training())
        parts, number = objective_of(noisy, shares, Training(features_per_step=20))
        assert number == 5
        values = [float(jax.jit(parts)(relaxed, styles, jnp.asarray(block))) for block in range(number)]
        assert np.mean(values) == pytest.approx(float(jax.jit(whole)(relaxed, styles, jnp.asarray(0))), rel=1e-4)

    @pytest.mark.long
    def test_a_published_generator(self, tmp_path):
        rows = _rows(1000, labels=3)
        rows[:, :20] = rows[:, -1:] / 2
        measured = measure_generator(rows, _labelled(), budget=PrivacyBudget(3.0, 1e-5), folder=tmp_path / "measured")
        assert "transform of rows" in measured.statement["public_inputs"]
        again = load(tmp_path / "measured")
        assert again.embedding.feature_map.features.transform == EDGES
        np.testing.assert_array_equal(again.embedding.coordinates, measured.embedding.coordinates)
        network = SmoothImages(8, 12, widths=(10,), code=3, styles=2)
        training = Training(num_steps=20, num_cycles=1, batch_size=12, features_per_step=50)
        released = again.synthesise(network, training, bounds=(0.0, 1.0), levels=255)
        objective = released.generator.report.objective
        assert np.isfinite(objective).all()
        released.save(tmp_path / "published")
        np.testing.assert_array_equal(load(tmp_path / "published").sample(30), released.sample(30))

    @pytest.mark.long
    def test_training_comes_closer(self):
        rows = _rows(2000, labels=3)
        rows[:, :48] = 0.2 + 0.3 * rows[:, -1:]
        made = dp_merf(
            jax.random.key(0), rows, _labelled(), SmoothImages(8, 12, widths=(10,), code=3, styles=2),
            Training(num_steps=100, num_cycles=1, batch_size=30), budget=PrivacyBudget(10.0, 1e-5), bounds=(0.0, 1.0),
        )  # fmt: skip
        assert made.report.objective[-1] < 0.7 * made.report.objective[0]
