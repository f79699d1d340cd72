"""Rare classes: what they borrow from the others, and that nothing changes without them."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from kme_jax import FourierMap, Gaussian, PrivacyBudget, cli, mean_embedding
from kme_jax.embedding import class_labels
from kme_jax.feature_maps import LabelledMap
from kme_jax.feature_maps.table import TableMap
from kme_jax.generators.generator import GeneratorReport
from kme_jax.generators.measure import measure_labelled
from kme_jax.generators.networks import MLP
from kme_jax.generators.rare import ClassEmbeddings, Prior, are_counted, num_prior_rows
from kme_jax.generators.release import GeneratorRelease
from kme_jax.generators.settings import Training
from kme_jax.generators.train import train_generator

NUM_FEATURES, NUM_CLASSES, RARE = 120, 8, 3
SHARES = np.asarray([1.0] * NUM_CLASSES)
SHARES[RARE] = 0.1
SHARES /= SHARES.sum()


def _drawn(seed, variance=4e-6, shares=SHARES):
    """Embeddings from the prior, with C of falling eigenvalues: (μ [L, F], its noisy embeddings, rows of features)."""
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.normal(size=(NUM_FEATURES, NUM_FEATURES)))[0]
    deviations = 0.2 / np.arange(1, NUM_FEATURES + 1)
    rows = rng.normal(size=(400, NUM_FEATURES)) * deviations @ axes.T
    means = 0.1 + 20 * rng.normal(size=(len(shares), NUM_FEATURES)) * deviations**2 @ axes.T
    noisy = shares[:, None] * means + math.sqrt(variance) * rng.normal(size=means.shape)
    return means, ClassEmbeddings.create(noisy, shares, variance), rows


def _errors(estimates, means):
    return np.sum(np.square(estimates - means), axis=1)


class TestClassEmbeddings:
    def test_the_spread_is_unbiased(self):
        spreads, truths = [], []
        for seed in range(60):
            means, classes, _ = _drawn(seed, variance=3e-5, shares=np.full(NUM_CLASSES, 1 / NUM_CLASSES))
            spreads.append(classes.spread)
            others = (means.sum(axis=0) - means) / (NUM_CLASSES - 1)
            truths.append(np.mean(_errors(others, means)))
        differences = np.subtract(spreads, truths)
        assert np.mean(differences) == pytest.approx(0, abs=4 * np.std(differences) / math.sqrt(60))
        assert np.mean(truths) > 20 * abs(np.mean(differences))

    def test_the_noise_is_that_of_the_difference(self):
        found = []
        for seed in range(20):
            means, classes, _ = _drawn(seed)
            precisions = np.square(SHARES)
            others = [np.average(np.delete(means, c, 0), axis=0, weights=np.delete(precisions, c)) for c in range(8)]
            found.append(np.mean(np.square(classes.values - classes.means - (means - others)), axis=1))
        np.testing.assert_allclose(np.mean(found, axis=0), classes.noise, rtol=0.08)

    def test_only_a_class_whose_noise_hides_it_is_rare(self):
        _, classes, _ = _drawn(0)
        np.testing.assert_array_equal(classes.rare, np.arange(NUM_CLASSES) == RARE)
        _, classes, _ = _drawn(0, variance=1e-12)  # the noise is far below what tells classes apart
        assert not classes.rare.any()
        _, classes, _ = _drawn(0, variance=1.0, shares=np.linspace(0.6, 1.0, NUM_CLASSES) / 6.4)  # all alike
        assert not classes.rare.any()

    def test_of_two_classes_none_borrows_if_their_distance_is_not_known(self):
        """The mean of the others is the other class, so that nothing would tell them apart."""
        shares, variance = np.asarray([0.94, 0.06]), 0.02
        noise = variance * np.sum(1 / np.square(shares))  # of each coordinate of ỹ_1 − ỹ_0
        for errors, borrows in ((0.0, False), (0.9, False), (1.1, True), (3.0, True)):
            square = NUM_FEATURES * noise + errors * math.sqrt(2 * NUM_FEATURES) * noise
            values = np.stack([np.zeros(NUM_FEATURES), np.full(NUM_FEATURES, math.sqrt(square / NUM_FEATURES))])
            classes = ClassEmbeddings.create(shares[:, None] * values, shares, variance)
            assert NUM_FEATURES * classes.variances[1] > classes.spread  # so the noise hides the class
            np.testing.assert_array_equal(classes.rare, [False, borrows])
            assert np.array_equal(classes.shrunk(), classes.values) == (not borrows)

    def test_without_a_prior_a_rare_class_goes_to_the_mean(self):
        better = []
        for seed in range(10):
            means, classes, _ = _drawn(seed)
            shrunk = classes.shrunk()
            common = ~classes.rare
            np.testing.assert_array_equal(shrunk[common], classes.values[common])
            better.append(_errors(shrunk, means)[RARE] / _errors(classes.values, means)[RARE])
        assert np.mean(better) < 0.8


class TestPrior:
    def test_the_metric_is_that_of_normal_variables(self):
        """The same as with matrices of all features: dᵀ C (C + v I)⁻¹ d for the prior covariance C."""
        _, classes, rows = _drawn(1)
        prior = Prior.estimate(classes, rows[:200])
        covariance = prior.axes.T @ np.diag(prior.scales[RARE]) @ prior.axes + prior.rest[RARE] * np.eye(NUM_FEATURES)
        gain = covariance @ np.linalg.inv(covariance + classes.noise[RARE] * np.eye(NUM_FEATURES))
        seen = prior.seen(classes)
        assert seen.labels.tolist() == [RARE]
        for difference in np.random.default_rng(0).normal(size=(5, NUM_FEATURES)):
            found = np.sum(np.square(seen.coordinates(0, difference)))
            assert found == pytest.approx(difference @ gain @ difference, rel=1e-4)
        together = prior.axes.T @ np.diag(prior.scales[0]) @ prior.axes + prior.rest[0] * np.eye(NUM_FEATURES)
        gain = together @ np.linalg.inv(together + classes.noise[RARE] * np.eye(NUM_FEATURES))
        share = np.trace(gain @ together) / np.trace(together)
        assert prior.visibility(classes)[RARE] == pytest.approx(share, rel=1e-6)

    def test_noise_is_left_out_and_signal_is_not(self):
        """In the metric, noise is a small part of the distance from the noisy embedding to the mean of the others."""
        squares = []
        for seed in range(8):
            means, classes, rows = _drawn(seed)
            seen = Prior.estimate(classes, rows).seen(classes)
            parts = classes.values[RARE] - means[RARE], means[RARE] - classes.means[RARE]
            vectors = *parts, *(seen.coordinates(0, part) for part in parts)
            squares.append([np.sum(np.square(vector)) for vector in vectors])
        noise, signal, seen_noise, seen_signal = np.mean(squares, axis=0)
        assert noise > 2 * signal
        assert seen_noise < 0.5 * seen_signal
        assert seen_signal > 0.6 * signal

    def test_directions_that_say_nothing_are_no_numbers_below_zero(self):
        """s/(s + v) minus rest/(rest + v) can round below zero where the prior has no more variance than elsewhere."""
        _, classes, rows = _drawn(0)
        prior = Prior.estimate(classes, rows)
        for rest in 10.0 ** np.arange(-12, 4):
            tiny = dataclasses.replace(prior, scales=1e-17 * prior.scales, rest=np.full(NUM_CLASSES, 0.7 * rest))
            assert np.isfinite(tiny.seen(classes).directions).all()

    def test_its_size_is_found(self):
        """κ C² has the trace that the classes were drawn with."""
        found = [Prior.estimate(classes, rows).scales[0].sum() for _, classes, rows in map(_drawn, range(8))]
        truth = np.sum(np.square(20 * (0.2 / np.arange(1, NUM_FEATURES + 1)) ** 2))
        assert np.mean(found) == pytest.approx(truth, rel=0.3)

    def test_less_is_visible_with_more_noise(self):
        seen = []
        for variance in (1e-9, 1e-7, 1e-5, 1e-3):
            _, classes, rows = _drawn(2, variance)
            visibility = Prior.estimate(classes, rows).visibility(classes)
            assert ((visibility >= 0) & (visibility <= 1)).all()
            assert visibility[RARE] == visibility.min()
            seen.append(visibility[RARE])
        assert seen == sorted(seen, reverse=True)
        assert seen[0] > 0.9
        assert seen[-1] < 0.2

    def test_rows_that_are_all_equal_are_no_error(self):
        _, classes, _ = _drawn(3)
        prior = Prior.estimate(classes, np.ones((64, NUM_FEATURES)))
        assert np.isfinite(prior.seen(classes).directions).all()
        assert np.isfinite(prior.visibility(classes)).all()


def test_few_rows_of_many_features():
    assert num_prior_rows(400) == num_prior_rows(10_000) == 1024
    assert num_prior_rows(100_000) == 400
    assert num_prior_rows(10**9) == 64


def test_a_count_within_its_noise_counts_nothing():
    np.testing.assert_array_equal(are_counted(np.asarray([0.5, 0.04, -0.1]), 1e-4), [True, False, False])


CENTRES = 1.5 * np.stack([np.cos(np.arange(5)), np.sin(np.arange(5))], axis=1)
FEATURES = LabelledMap(FourierMap.from_kernel(jax.random.key(1), Gaussian(0.5), 600, 2), 5)
NETWORK, TRAINING = MLP(widths=(20, 20), code=2, styles=6), Training(num_steps=150, num_cycles=3, batch_size=100)


def _measured(sizes, epsilon=1.0):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(5), sizes)
    rows = np.column_stack([CENTRES[labels] + 0.3 * rng.normal(size=(len(labels), 2)), labels])
    sums = mean_embedding(FEATURES, rows)
    counts = mean_embedding(TableMap.of_codes(5), class_labels(FEATURES, rows))
    return measure_labelled(jax.random.key(3), sums, counts, PrivacyBudget(epsilon, 1e-5), count_share=0.1)


def _trained(measured, **changes):
    training = dataclasses.replace(TRAINING, **changes)
    return train_generator(jax.random.key(5), measured.embedding, NETWORK, training, counts=measured.counts)


@pytest.mark.long
def test_training_finds_a_rare_class():
    measured = _measured([4000, 4000, 300, 4000, 4000], epsilon=0.2)
    rows = CENTRES[2] + 0.3 * np.random.default_rng(1).normal(size=(20_000, 2))
    truth = mean_embedding(FEATURES.features, rows).coordinates

    def error(made):
        rows = made.sample(4000, labels=np.full(4000, 2))[:, :2].astype(float)
        return np.sum(np.square(mean_embedding(FEATURES.features, rows).coordinates - truth))

    made, alone = _trained(measured), _trained(measured, borrow=False)
    assert error(made) < 0.6 * error(alone)
    assert np.isfinite(made.report.fit)


@pytest.mark.long
def test_equal_classes_are_trained_as_before():
    measured = _measured([2000] * 5, epsilon=0.2)
    made, alone = _trained(measured), _trained(measured, borrow=False)
    assert made.report == alone.report
    for name, value in made.state.items():
        np.testing.assert_array_equal(value, alone.state[name])


def test_a_report_names_classes_below_the_noise():
    report = GeneratorReport((), (), 1.0, 0.1, 1.0, True, (0.9, 0.49, 0.5, 0.0))
    assert report.below_noise == (1, 3)
    assert "classes below the noise" in report._repr_html_()
    assert "below the noise" not in dataclasses.replace(report, visibility=(0.9, 0.6))._repr_html_()
    assert dataclasses.replace(report, visibility=()).below_noise == ()
    with pytest.raises(ValueError, match="visibility"):
        dataclasses.replace(report, visibility=(1.5,)).validate()


@pytest.mark.long
def test_a_class_that_cannot_be_seen_is_named(tmp_path, capsys):
    measured = _measured([4000, 4000, 10, 4000, 4000])
    made = _trained(measured, num_steps=50, num_cycles=1)
    assert made.report.below_noise == (2,)
    assert made.report.visibility[2] == 0
    assert "classes below the noise" in made.report._repr_html_()
    GeneratorRelease.create(made, measured).save(tmp_path / "release")
    assert GeneratorRelease.load(tmp_path / "release").generator.report == made.report
    assert cli.main(["show", str(tmp_path / "release")]) == 0
    assert "what all classes share: 2" in capsys.readouterr().out
