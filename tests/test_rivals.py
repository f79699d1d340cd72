"""experiments.rivals: DP-SGD, the networks, and runs at a tiny size."""

import dataclasses
import functools
import itertools
import json

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import pld, rdp

from experiments.common.dataset_rows import Dataset
from experiments.common.errors import InputError
from experiments.common.progress import Stages
from experiments.merf import classifiers, table_classifiers, table_files
from experiments.rivals import dp_sgd, gan, plot, report, run, sources, tasks
from experiments.rivals.columns import Columns
from experiments.rivals.config import SOURCES, RivalsConfig
from experiments.rivals.critic import Critic
from experiments.rivals.settings import SETTINGS
from kme_jax import Categorical, Numeric, PrivacyBudget, Schema
from kme_jax.generators.networks import MLP

BUDGET = PrivacyBudget(1.0, 1e-5)
SMALL = Columns(3, 2, (4, 2))
IMAGES = Columns(64, 3, side=8)


def _mixed_rows(number, seed=0):
    rng = np.random.default_rng(seed)
    codes = [rng.integers(size, size=number) for size in (4, 2)]
    labels = rng.integers(2, size=number)
    return np.column_stack([rng.random((number, 3)), *codes, labels]).astype(np.float32)


def _tiny(clips, **others):
    sizes = {"batch_size": 20, "num_steps": 6, "critic_steps": 2, "warm_up": 2, "generator_batch": 8}
    return gan.Gan(clips, MLP(widths=(6,), code=3), Critic(widths=(5,)), **(sizes | others))


@functools.cache
def _plan(count_scale):
    return dp_sgd.plan(10_000, 200, 300, BUDGET, count_scale)


class TestBudget:
    @pytest.mark.slow
    @pytest.mark.parametrize("count_scale", [5.0, 0.0])
    def test_the_multiplier_is_enough_and_a_smaller_one_is_not(self, count_scale):
        plan = _plan(count_scale)
        assert plan.rate == 0.02
        assert plan.epsilon(BUDGET.delta) <= 1
        smaller = dataclasses.replace(plan, noise_multiplier=0.98 * plan.noise_multiplier)
        assert smaller.epsilon(BUDGET.delta) > 1

    @pytest.mark.slow
    def test_two_accountants_agree(self):
        """The Rényi accountant's ε is an upper bound too. It is at most a fifth larger here."""
        plan = _plan(0.0)
        step = dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(plan.noise_multiplier))
        other = rdp.RdpAccountant().compose(step, 300).get_epsilon(BUDGET.delta)
        assert plan.epsilon(BUDGET.delta) <= other < 1.2

    @pytest.mark.slow
    def test_counts_are_a_part_of_the_budget(self):
        without, with_counts = (_plan(scale) for scale in (0.0, 5.0))
        assert with_counts.noise_multiplier > 1.01 * without.noise_multiplier
        alone = pld.PLDAccountant().compose(dp_accounting.GaussianDpEvent(5.0)).get_epsilon(BUDGET.delta)
        assert alone < 1

    def test_a_sample_has_room(self):
        from scipy import stats

        room = dp_sgd.room(60_000, 0.01, 5000, 1.0, 1e-5)
        without_room = 5000 * stats.binom.sf(room, 60_001, 0.01)
        assert (1 + np.e) * without_room <= 1e-3 * 1e-5
        assert 600 < room < 900
        assert dp_sgd.room(50, 0.9, 10, 1.0, 1e-5) == 51
        assert dp_sgd.room(50, 0.01, 10, 1e4, 1e-5) == 51

    @pytest.mark.parametrize("batch_size", [0, 100, 101])
    def test_a_batch_is_below_the_number_of_rows(self, batch_size):
        with pytest.raises(ValueError, match="fewer than 100"):
            dp_sgd.plan(100, batch_size, 10, BUDGET)

    def test_what_no_noise_can_give_is_said(self):
        with pytest.raises(ValueError, match="epsilon = 1 is too small for 3 steps"):
            dp_sgd.plan(10_000, 200, 3, BUDGET, count_scale=0.3)


class TestSampling:
    def test_sizes_vary_as_those_of_independent_rows(self):
        plan = dp_sgd.Plan(0.1, 10, 400, 1.0)
        rng = np.random.default_rng(0)
        sizes, counts = [], np.zeros(1000)
        for _ in range(400):
            indices, used = dp_sgd.sample(rng, 1000, plan)
            chosen = indices[used == 1]
            assert len(np.unique(chosen)) == len(chosen)
            assert len(indices) == 400
            sizes.append(len(chosen))
            counts[chosen] += 1
        assert np.mean(sizes) == pytest.approx(100, abs=2)
        assert np.var(sizes) == pytest.approx(90, rel=0.3)
        assert np.var(counts) == pytest.approx(400 * 0.09, rel=0.2)

    def test_rows_beyond_the_room_are_left_out(self):
        indices, used = dp_sgd.sample(np.random.default_rng(0), 1000, dp_sgd.Plan(0.5, 10, 30, 1.0))
        assert len(indices) == used.sum() == 30


def _gradients(critic, columns, matrices, rows, labels):
    """Gradients of single examples, by automatic differentiation."""

    def of_one(matrices, row, label):
        return jax.nn.softplus(critic.scores(columns, matrices, row[None], label[None])[0])[0]

    return jax.vmap(jax.grad(of_one), (None, 0, 0))(matrices, rows, labels)


@pytest.fixture(scope="module", params=[pytest.param("image", marks=pytest.mark.slow), "table"])
def example(request):
    """Of five rows: what a critic says of each layer, and gradients of single rows."""
    critic, columns = (Critic((3, 4), (7,)), IMAGES) if request.param == "image" else (Critic(widths=(6, 5)), SMALL)
    keys = jax.random.split(jax.random.key(0), 3)
    matrices = critic.start(columns, keys[0])
    matrices[-1] = jax.random.normal(keys[1], matrices[-1].shape)
    rows, labels = jax.random.uniform(keys[2], (5, columns.width)), jnp.asarray([0, 1, 0, 1, 1])

    @jax.jit
    def of_rows(matrices):
        layers = critic.layers(columns, matrices, rows, labels, jax.nn.softplus)
        return layers, _gradients(critic, columns, matrices, rows, labels)

    with jax.default_matmul_precision("highest"):
        return of_rows(matrices)


CLIPPED_SUM = jax.jit(dp_sgd.clipped_sum)


def _norm(matrices):
    return float(np.sqrt(sum(np.sum(np.square(np.asarray(x, np.float64))) for x in matrices)))


class TestClipping:
    def test_the_sum_is_that_of_clipped_gradients(self, example):
        layers, gradients = example
        norms = np.sqrt(sum(np.sum(np.square(x).reshape(5, -1), axis=1) for x in gradients))
        np.testing.assert_allclose(dp_sgd.squared_norms(layers), norms**2, rtol=1e-4)
        norm, used = float(np.median(norms)), np.asarray([1, 1, 0, 1, 1.0])
        factors = used * np.minimum(1, norm / norms)
        summed = CLIPPED_SUM(layers, jnp.asarray(used, jnp.float32), norm)
        for mine, theirs in zip(summed, gradients, strict=True):
            np.testing.assert_allclose(mine, np.einsum("n,nio->io", factors, theirs), atol=1e-4 * norm)

    @pytest.mark.parametrize("norm", [1e-3, 1.0, 1e3])
    def test_one_example_changes_it_by_the_norm_at_most(self, example, norm):
        layers, _ = example
        everyone = CLIPPED_SUM(layers, jnp.ones(5), norm)
        changes = []
        for left_out in range(5):
            others = CLIPPED_SUM(layers, jnp.ones(5).at[left_out].set(0), norm)
            changes.append(_norm([x - y for x, y in zip(everyone, others, strict=True)]))
        assert max(changes) <= norm * (1 + 1e-3)
        assert max(changes) > (0.99 * norm if norm < 1e-2 else 0)  # most of the others are not clipped

    def test_a_clipped_gradient_has_the_norm_at_most(self, example):
        layers, _ = example
        for number in range(5):
            alone = CLIPPED_SUM(layers, jnp.zeros(5).at[number].set(1), 0.1)
            assert _norm(alone) <= 0.1 * (1 + 1e-4)

    def test_padding_counts_for_nothing(self, example):
        layers, _ = example
        assert _norm(CLIPPED_SUM(layers, jnp.zeros(5), 1.0)) == 0

    def test_noise_has_its_scale(self):
        zeros = [jnp.zeros((300, 100)), jnp.zeros((10, 3000))]
        noisy = dp_sgd.with_noise(jax.random.key(0), zeros, 3.0)
        for x in noisy:
            assert float(jnp.std(x)) == pytest.approx(3, rel=0.03)
        assert abs(np.corrcoef(noisy[0].ravel(), noisy[1].ravel())[0, 1]) < 0.03


class TestGan:
    @pytest.mark.parametrize(
        "clips", [pytest.param("together", marks=pytest.mark.long), pytest.param("apart", marks=pytest.mark.slow)]
    )
    def test_a_row_moves_a_step_by_the_norm_at_most(self, clips):
        """Two samples that differ in one row, without noise: the gradients of a step differ by C/batch at most."""
        model = _tiny(clips)
        rows = _mixed_rows(12)
        encoded, labels = SMALL.encoded(rows)
        state = gan.start(model, SMALL, jax.random.key(0))
        shares = np.full(2, 0.5)
        step = jax.jit(lambda *arguments: gan.critic_gradients(model, SMALL, *arguments))
        gradients = [
            step(state, jax.random.key(1), encoded, labels, used.astype(np.float32), shares, 0.0)
            for used in (np.ones(12), np.r_[np.ones(11), 0])
        ]
        change = _norm([x - y for x, y in zip(*gradients, strict=True)])
        assert 0 < change <= model.norm / model.batch_size * (1 + 1e-4)

    @pytest.mark.parametrize("clips", ["together", "apart"])
    @pytest.mark.long
    def test_it_trains_and_samples(self, clips):
        rows = _mixed_rows(200)
        seen = []
        trained = gan.train(
            0, rows, SMALL, _tiny(clips), BUDGET, 10.0, progress=lambda done, total: seen.append((done, total))
        )
        assert seen[0] == (0, 6)
        assert trained.plan.epsilon(BUDGET.delta) <= 1
        made = trained.sample(50, seed=1)
        assert made.shape == (50, 6)
        assert made[:, :3].min() >= 0
        assert made[:, :3].max() <= 1
        for column, size in zip(made[:, 3:].T, (4, 2, 2), strict=True):
            assert set(column) <= set(range(size))
        np.testing.assert_array_equal(made, trained.sample(50, seed=1))
        assert trained.shares.sum() == pytest.approx(1)
        again = gan.train(0, rows, SMALL, _tiny(clips), BUDGET, 10.0)
        np.testing.assert_array_equal(made, again.sample(50, seed=1))

    @pytest.mark.long
    def test_it_learns_with_little_noise(self):
        """The mean of a column of each class, at ε = 50."""
        rng = np.random.default_rng(0)
        labels = rng.integers(2, size=4000)
        numbers = np.clip(0.2 + 0.6 * labels[:, None] + 0.05 * rng.normal(size=(4000, 1)), 0, 1)
        rows = np.column_stack([numbers, labels]).astype(np.float32)
        model = dataclasses.replace(
            _tiny("apart"), generator=MLP(widths=(16,), code=3), critic=Critic(widths=(32,)), batch_size=200,
            num_steps=1500, warm_up=50, generator_batch=100,
        )  # fmt: skip
        trained = gan.train(0, rows, Columns(1, 2), model, PrivacyBudget(50.0, 1e-5))
        made = trained.sample(1000, seed=0, labels=np.arange(1000) % 2)
        for label, centre in ((0, 0.2), (1, 0.8)):
            assert np.mean(made[made[:, 1] == label, 0]) == pytest.approx(centre, abs=0.15)

    def test_rows_survive_their_encoding(self):
        rows = _mixed_rows(30)
        encoded, labels = SMALL.encoded(rows)
        assert encoded.shape == (30, SMALL.width)
        np.testing.assert_array_equal(SMALL.decoded(encoded, labels), rows)

    @pytest.mark.long
    def test_relaxed_rows_are_rows(self):
        raw = jax.random.normal(jax.random.key(0), (20, SMALL.width))
        relaxed = np.asarray(SMALL.relaxed(jax.random.key(1), raw))
        for start, size in ((3, 4), (7, 2)):
            np.testing.assert_allclose(np.sort(relaxed[:, start : start + size])[:, -1], 1, atol=1e-6)
        moved = jax.grad(lambda raw: jnp.sum(jnp.square(SMALL.relaxed(jax.random.key(1), raw)[:, 3])))(raw)
        assert float(jnp.abs(moved[:, 3:7]).max()) > 0

    def test_rare_classes_keep_a_share(self):
        shares = gan.noisy_shares(jax.random.key(0), np.zeros(1000, int), 3, 5.0)
        assert shares.sum() == pytest.approx(1)
        assert shares.min() > 0
        assert shares[0] > 0.95


def _task():
    """Images of ten classes, each bright in a row of its own."""
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 10
    pixels = 0.2 * rng.random((300, 28, 28))
    pixels[np.arange(300), 2 * labels] += 0.7
    rows = np.column_stack([pixels.reshape(300, -1), labels]).astype(np.float32)
    columns = Columns(784, 10, side=28)
    return tasks.Task(
        "mnist", "MNIST", columns, rows[:250], lambda rows: rows[:, :-1], rows[250:, :-1], labels[250:],
        classifiers.scores,
    )  # fmt: skip


def _small_table():
    rng = np.random.default_rng(0)
    schema = Schema((Numeric("x", 0, 9), Categorical("g", ("a", "b", "c")), Categorical("rich", ("no", "yes"))))
    codes = np.column_stack([rng.integers(schema.columns[0].num_codes, size=400), rng.integers(3, size=400)])
    codes = np.column_stack([codes, codes[:, 0] * 2 >= schema.columns[0].num_codes])
    table = schema.decode(codes.astype(np.int64))
    data = Dataset("small", table.slice(0, 300), table.slice(300), schema, "rich")
    layout = table_files.Layout(schema, "rich")
    private, test = (layout.rows(schema.encode(part)) for part in (data.private, data.test))
    columns = Columns(len(layout.numbers), layout.num_labels, layout.categories)
    return tasks.Task(
        "small", "Small", columns, private, layout.design, layout.design(test), layout.labels(test),
        table_classifiers.scores, 1.0, data,
    )  # fmt: skip


def _config(output_dir, **others):
    chosen = {
        "datasets": ("mnist",),
        "sources": ("dp_gan", "real rows"),
        "num_samples": 100,
        "num_steps": 3,
        "classifiers": ("gaussian_nb",),
        "output_dir": str(output_dir),
    }
    return RivalsConfig(**(chosen | others))


class TestRuns:
    @pytest.mark.long
    def test_a_run_can_be_drawn_and_goes_on(self, tmp_path, monkeypatch):
        small = {kind: dict.fromkeys(("dp_gan", "dp_cgan"), _tiny("apart")) for kind in SETTINGS}
        monkeypatch.setattr(sources, "SETTINGS", small)
        monkeypatch.setattr(tasks, "load", lambda *arguments: _task())
        config = _config(tmp_path)
        first = run.run(config)["mnist"]
        assert [cell["source"] for cell in first["cells"]] == ["dp_gan", "real rows"]
        assert first["cells"][0]["verified_epsilon"] <= 1
        sources_of_all = ("dp_gan", "dp_cgan", "release_table", "real rows")
        more = run.run(dataclasses.replace(config, sources=sources_of_all))["mnist"]
        assert more["cells"][:2] == first["cells"]
        assert [cell["source"] for cell in more["cells"][2:]] == ["dp_cgan"]
        path = tmp_path / "rivals_mnist.json"
        assert more == json.loads(path.read_text())
        picture = plot.draw([path], tmp_path / "picture.png")
        assert picture.stat().st_size > 10_000
        lines = report.markdown(more).splitlines()
        assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:5]] == ["DP-GAN", "DP-CGAN", "real rows"]

    @pytest.mark.long
    def test_our_sources_give_rows(self):
        """The generator of images, and the generator and the release of a table."""
        config = _config("", num_samples=40)
        rows, about = sources.make(config, _task(), "generator", 0, Stages("images"))
        assert rows.shape == (40, 785)
        assert len(about["sheet"]) > 100
        task = _small_table()
        for source in ("generator", "release_table"):
            rows, about = sources.make(config, task, source, 0, Stages("table"))
            assert rows.shape == (40, task.rows.shape[1])
            assert about["relation"] == "replace_one"
            assert set(np.unique(rows[:, -1])) <= {0, 1}

    def test_the_table(self):
        def cell(source, seed, accuracy, **others):
            scores = {"lda": {"accuracy": accuracy}, "mlp": {"accuracy": accuracy + 0.2}}
            return {"source": source, "seed": seed, "scores": scores, "seconds": {"training": 60.4}} | others

        private = {"relation": "add_remove", "steps": 9, "noise_multiplier": 1.5, "verified_epsilon": 0.99}
        cells = [cell("dp_gan", 0, 0.3, **private), cell("dp_gan", 1, 0.5, **private), cell("real rows", 0, 0.7)]
        result = {"config": {"dataset": "mnist", "delta": 1e-5, "epsilon": 1.0}, "cells": cells}
        lines = report.markdown(result).splitlines()
        assert lines[2] == "| DP-GAN | 1 | add or remove one | 0.500 ± 0.100 | 2 | 9 | 1.50 | 0.9900 | 60 |"
        assert lines[3] == "| real rows | – | – | 0.800 | 1 | – | – | – | – |"
        assert all(line.startswith("| quoted: ") for line in lines[4:])
        assert len({line.count("|") for line in lines}) == 1

    def test_every_quoted_figure_has_a_source_and_a_place(self):
        quoted = json.loads(report.QUOTED.read_text())["rows"]
        for row in quoted:
            assert row["source"]
            assert any(0 < row.get(metric, 0) < 1 for metric in report.metrics_of(row["dataset"]))

    def test_settings_differ_in_clipping_alone(self):
        for of_kind in SETTINGS.values():
            assert set(of_kind) == {"dp_gan", "dp_cgan"}
            for one, other in itertools.pairwise(of_kind.values()):
                assert dataclasses.replace(one, clips=other.clips) == other
        assert set(SETTINGS["images"]) < set(SOURCES)

    def test_a_delta_that_protects_nobody_is_refused(self, tmp_path, monkeypatch):
        monkeypatch.setattr(tasks, "load", lambda *arguments: _task())
        with pytest.raises(InputError, match="well below 1/N") as caught:
            run.run(_config(tmp_path, delta=1 / 250))
        assert "\n" not in str(caught.value)

    def test_nothing_to_draw_is_said(self, tmp_path):
        (tmp_path / "a.json").write_text(json.dumps({"cells": []}))
        with pytest.raises(ValueError, match="no result has images"):
            plot.draw([tmp_path / "a.json"], tmp_path / "a.png")


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ({"datasets": ("cifar",)}, "expected one or more different names among mnist, fashion_mnist, adult"),
        ({"sources": ("pate",)}, "expected one or more different names among dp_gan"),
        ({"classifiers": ()}, "expected one or more different names"),
        ({"num_samples": 0}, "--num_samples must be at least 1"),
        ({"num_steps": -1}, "--num_steps must be at least 0"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"delta": 2.0}, "delta must be in"),
    ],
)
def test_bad_configurations_are_one_line(others, says):
    with pytest.raises(InputError, match=says) as caught:
        RivalsConfig(**others).validate()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "data_dir", "validation", "says"),
    [
        ("adult", "", 0, "give --data_dir"),
        ("adult", "nowhere", 0, "data set adult"),
        ("mnist", "nowhere", 0, "has no folder mnist"),
    ],
)
def test_missing_data_are_one_line(name, data_dir, validation, says):
    with pytest.raises(InputError, match=says) as caught:
        tasks.load(name, data_dir, 0, validation)
    assert "\n" not in str(caught.value)
