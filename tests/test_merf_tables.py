"""The eight tables of [H]: their files, rows of generators, design matrices, and the twelve classifiers."""

import dataclasses
import gzip
import json
import math
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pytest
from scipy.io import savemat

from experiments.common import dataset_rows, datasets
from experiments.common.errors import InputError
from experiments.common.processes import Measured
from experiments.merf import (
    plot,
    table_classifiers,
    table_files,
    table_generators,
    table_invented,
    table_published,
    table_quoted,
    table_report,
    table_sources,
    tables,
)
from experiments.merf.table_files import Layout
from kme_jax import FourierMap, Gaussian, PrivacyBudget
from kme_jax.generators.settings import Training
from kme_jax.table.columns import Categorical, Numeric
from kme_jax.table.schema import Schema

FAST = ("gaussian_nb", "lda")
SCHEMA = Schema(
    (
        Categorical("colour", ("red", "green", "blue"), nullable=True),
        Numeric("size", 0, 10, integer=True, nullable=True),
        Categorical("smokes", ("no", "yes")),
        Numeric("wealth", -5, 5, step=0.5),
        Categorical("rich", ("no", "yes")),
    )
)


def write_epileptic(folder, num_recordings=10, chunks=3):
    """A file in the format of the Bonn EEG. Recordings of the set S are seizures, whose values are large."""
    rng, lines = np.random.default_rng(0), ["id," + ",".join(f"X{i}" for i in range(1, 179)) + ",y"]
    for number in range(num_recordings):
        for chunk in range(chunks):
            name, y = ("S", 1) if number % 2 else ("Z", 5)
            values = np.rint(rng.normal(scale=500 if y == 1 else 50, size=178)).astype(int)
            lines.append(f"{name}{number:03d}.{chunk:02d}," + ",".join(map(str, values)) + f",{y}")
    path = folder / "epileptic/epileptic_bonn_chunks_11500x178.csv.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def write_isolet(folder, letters=None, columns=617):
    letters = np.tile(np.arange(1, 27), 4) if letters is None else letters
    path = folder / "isolet/isolet1_1560x617.mat"
    path.parent.mkdir(parents=True)
    sounds = np.random.default_rng(0).uniform(-1, 1, size=(len(letters), columns))
    savemat(path, {"fea": sounds, "gnd": letters[:, None]})
    return path


_WRITE = {"epileptic": write_epileptic, "isolet": write_isolet}


def _text(path, old, new):
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(old, new)))


class TestLayout:
    codes = np.array([[0, 3, 1, 20, 1], [3, 11, 0, 0, 0], [2, 0, 1, 10, 1]])

    def test_rows_have_numbers_and_then_codes_and_the_label(self):
        layout = Layout(SCHEMA, "rich")
        assert (layout.numbers, layout.categories, layout.num_labels) == ((1, 3), (4, 2, 2), 2)
        rows = layout.rows(self.codes)
        expected = [[0.3, 1, 0, 1, 0, 1], [0, 0, 3, 0, 1, 0], [0, 0.5, 2, 1, 0, 1]]
        np.testing.assert_allclose(rows, expected, rtol=1e-6)
        assert rows.dtype == np.float32
        np.testing.assert_array_equal(layout.labels(rows), self.codes[:, 4])

    def test_rows_give_their_codes_back(self):
        layout = Layout(SCHEMA, "rich")
        rows = layout.rows(self.codes)
        np.testing.assert_array_equal(layout.codes(rows), self.codes)
        rows[:, :2] += 0.02  # not a value of the schema, or beyond the bounds
        np.testing.assert_array_equal(layout.codes(rows), self.codes)
        SCHEMA.check(SCHEMA.decode(layout.codes(rows)))

    def test_the_design_has_a_column_for_each_code(self):
        layout = Layout(SCHEMA, "rich")
        design = table_files.design(SCHEMA, "rich", self.codes)
        assert design.shape == (3, layout.num_features) == (3, 8)
        colours = [[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
        np.testing.assert_array_equal(design[:, 2:6], colours)
        np.testing.assert_array_equal(design[:, 6:], [[1, 0], [0, 1], [1, 0]])  # smokes; size is missing

    def test_a_label_that_is_no_category_is_one_line(self):
        for target, says in (("wealth", "is no category column"), ("income", "no column income to predict")):
            with pytest.raises(InputError, match=says) as caught:
                Layout(SCHEMA, target)
            assert "\n" not in str(caught.value)
        with pytest.raises(ValueError, match="expected rows of 6 columns"):
            Layout(SCHEMA, "rich").design(np.zeros((3, 5), np.float32))


class TestFiles:
    def test_chunks_of_a_recording_stay_together(self, tmp_path):
        write_epileptic(tmp_path)
        dataset = table_files.load("epileptic", str(tmp_path), seed=1)
        assert (dataset.private.num_rows, dataset.test.num_rows) == (24, 6)
        every = datasets.load("epileptic", str(tmp_path), seed=2)
        rows = pa.concat_tables([every.private, every.test]).to_pylist()
        for seed in range(3):
            split = table_files.load("epileptic", str(tmp_path), seed=seed) if seed else dataset
            of_test = [row for row in rows if row in split.test.to_pylist()]
            assert len(of_test) == 6
            assert not [row for row in of_test if row in split.private.to_pylist()]
        large = [max(abs(row[f"X{i}"]) for i in range(1, 179)) > 400 for row in rows]
        assert large == [row["seizure"] == "yes" for row in rows]
        groups = np.repeat(np.arange(10), 3)
        of_groups = dataset_rows.split("x", pa.table({"group": groups}), every.schema, "seizure", 0, groups)
        assert not set(of_groups.private["group"].to_pylist()) & set(of_groups.test["group"].to_pylist())

    def test_vowels_are_positive(self, tmp_path):
        write_isolet(tmp_path)
        dataset = table_files.load("isolet", str(tmp_path), seed=0)
        rows = pa.concat_tables([dataset.private, dataset.test])
        assert rows["vowel"].to_pylist().count("yes") == 4 * 5
        assert (dataset.private.num_rows, dataset.test.num_rows) == (83, 21)

    @pytest.mark.parametrize(
        ("name", "spoil", "says"),
        [
            ("epileptic", lambda path: path.unlink(), r"epileptic_bonn_chunks_11500x178\.csv\.gz"),
            ("epileptic", lambda path: path.write_bytes(path.read_bytes()[:500]), "fetch it again"),
            ("epileptic", lambda path: path.write_bytes(gzip.compress(b"a,b\n1,2\n")), "columns"),
            (
                "epileptic",
                lambda path: _text(path, b"S", b"seven"),
                "ids must be those of recordings",
            ),
            ("isolet", lambda path: path.unlink(), r"isolet1_1560x617\.mat"),
            ("isolet", lambda path: path.write_bytes(path.read_bytes()[:900]), "fetch it again"),
            ("isolet", lambda path: savemat(path, {"other": np.zeros(3)}), "fea and gnd; fetch it again"),
            (
                "isolet",
                lambda path: savemat(path, {"fea": np.zeros((3, 4)), "gnd": np.ones(3)}),
                "expected 617 columns",
            ),
        ],
    )
    def test_spoilt_files_are_one_line(self, tmp_path, name, spoil, says):
        spoil(_WRITE[name](tmp_path))
        with pytest.raises(InputError, match=says) as caught:
            table_files.load(name, str(tmp_path), 0)
        assert "\n" not in str(caught.value)
        assert f"data set {name}: " in str(caught.value)

    def test_a_cut_archive_is_one_line(self, tmp_path):
        (tmp_path / "census").mkdir()
        (tmp_path / "census/census-income.names").write_text("age: continuous.\n")
        (tmp_path / "census/census-income.test.zip").write_bytes(b"PK")
        with pytest.raises(InputError, match=r"data set census: .*fetch it again"):
            table_files.load("census", str(tmp_path), 0)

    def test_one_class_alone_is_one_line(self, tmp_path):
        write_isolet(tmp_path, np.full(30, 2))
        with pytest.raises(InputError, match=r"rows have 1 of the 2 classes of vowel.*is the file cut\?") as caught:
            table_files.load("isolet", str(tmp_path), 0)
        assert "\n" not in str(caught.value)


class TestClassifiers:
    def _data(self, num_classes, seed):
        rng = np.random.default_rng(seed)
        labels = np.arange(60) % num_classes
        return (np.eye(5)[labels] + 0.05 * rng.normal(size=(60, 5))).astype(np.float32), labels

    @pytest.mark.parametrize("num_classes", [2, 3])
    def test_all_learn(self, num_classes):
        names = [name for name in table_classifiers.NAMES if name not in ("xgboost", "mlp")]
        by_name = table_classifiers.scores(*self._data(num_classes, 0), *self._data(num_classes, 1), 0, names=names)
        assert list(by_name) == names
        for name, scores in by_name.items():
            assert set(scores) == {*table_classifiers.METRICS, "seconds"}
            assert min(scores[metric] for metric in table_classifiers.METRICS) > 0.9, name

    def test_one_class_alone_says_nothing(self):
        train, labels = self._data(2, 0)
        test, truth = self._data(2, 1)
        for label in (0, 1):
            scores = table_classifiers.scores(train, np.full_like(labels, label), test, truth, 0, names=FAST)["lda"]
            assert (scores["roc"], scores["hard_roc"]) == (0.5, 0.5)
            assert (scores["prc"], scores["hard_prc"]) == (0.5, 0.5)  # the share of the positive rows
        test, truth = self._data(3, 1)
        scores = table_classifiers.scores(train, np.full_like(labels, 1), test, truth, 0, names=FAST)["lda"]
        assert scores["roc"] == 0.5

    def test_a_class_that_nobody_has_learnt(self):
        train, labels = self._data(4, 0)
        test, truth = self._data(4, 1)
        kept = labels != 1  # XGBoost would refuse the gap
        scores = table_classifiers.scores(train[kept], labels[kept], test, truth, 0, names=FAST)["lda"]
        assert 0.6 < scores["roc"] < 1
        assert 0.6 < scores["f1"] < 0.8

    def test_scores_of_the_authors_are_of_labels(self):
        truth, predicted = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1])
        soft = np.array([[1, 0.0], [0.4, 0.6], [0.3, 0.7], [0.2, 0.8]])
        scores = table_classifiers.judge(truth, predicted, soft)
        assert (scores["roc"], scores["prc"]) == (1, 1)
        assert scores["hard_roc"] == pytest.approx(0.75)  # the mean of the two recalls
        assert scores["hard_prc"] == pytest.approx(2 / 3)
        assert scores["f1"] == pytest.approx(0.8)
        unbalanced = table_classifiers.judge(np.array([0, 0, 0, 2]), np.array([0, 0, 1, 2]), np.eye(3)[[0, 0, 1, 2]])
        assert unbalanced["f1"] == pytest.approx((3 * 0.8 + 1) / 4)

    def test_test_rows_of_one_class_are_one_line(self):
        train, labels = self._data(2, 0)
        with pytest.raises(InputError, match="one class only"):
            table_classifiers.scores(train, labels, train, np.zeros(60, int), 0, names=FAST)


def test_the_eight_are_those_of_the_paper():
    assert set(table_files.NAMES) <= set(datasets.NAMES)
    assert {*table_files.PARTS, *table_files.OTHER} == set(table_files.NAMES)


class TestPublished:
    def test_raw_columns_are_those_of_the_authors(self):
        layout = Layout(SCHEMA, "rich")
        codes = np.array([[0, 3, 1, 20, 1], [3, 11, 0, 0, 0], [2, 5, 1, 10, 1]])
        plain, coded = (table_published.Raw(layout, codes=coded) for coded in (False, True))
        assert plain.as_categories.tolist() == [False, False, False, True]
        assert coded.as_categories.tolist() == [False, False, True, True]
        # size (missing: the median of 3 and 5), wealth, colour (missing has a code), smokes
        np.testing.assert_allclose(plain.read(codes), [[3, 5, 0, 1], [4, -5, 3, 0], [5, 0, 2, 1]])
        back = plain.written(plain.read(codes), codes[:, 4])
        np.testing.assert_array_equal(back[[0, 2]], codes[[0, 2]])
        SCHEMA.check(SCHEMA.decode(plain.written(np.full((3, 4), 1e9), codes[:, 4])))

    def test_lengths_are_medians(self):
        rows = np.array([[0, 0.0], [3, 0], [0, 4]])
        np.testing.assert_allclose(table_published.lengths(rows, False), [4, 4])
        np.testing.assert_allclose(table_published.lengths(rows, True), [3, 4])
        np.testing.assert_allclose(table_published.lengths(np.zeros((3, 2)), True), [1, 1])

    def test_the_sums_are_those_of_the_kernel(self):
        rng = np.random.default_rng(0)
        fourier = FourierMap(Gaussian(0.5), (rng.normal(size=(4000, 2)) / (2 * math.pi)).astype(np.float32))
        numbers, categories = rng.normal(size=(5, 2)), rng.integers(2, size=(5, 3))
        labels = np.array([0, 1, 1, 0, 1])
        sums = table_published.embedding_sums(fourier, numbers, categories, labels, 2)
        squares = np.sum(np.square(numbers[:, None] - numbers), axis=2)
        kernel = np.exp(-squares / 2) + categories @ categories.T / 3
        same = np.eye(2)[labels].T
        np.testing.assert_allclose(sums @ sums.T, same @ kernel @ same.T, rtol=0.02)

    def test_noise_is_what_the_paper_claims(self):
        assert table_published.noise_multiplier(PrivacyBudget(1.0, 1e-5)) == pytest.approx(5.276, abs=0.01)

    def test_long_trainings_are_cut(self):
        limits = table_published.Limits(batch_size=100, num_features=1000, work=1e6)
        sizes = table_published.SETTINGS["epileptic"].cut(9200, limits)
        assert sizes == table_published.Sizes(num_steps=10, batch_size=92, num_features=1000)
        whole = table_published.SETTINGS["cervical"].cut(686, table_published.Limits())
        assert whole == table_published.Sizes(num_steps=200, batch_size=69, num_features=2000)


class TestRule:
    def test_wide_counts_are_on_a_logarithmic_scale(self):
        schema = Schema(
            (Numeric("bytes", 0, 2**20, integer=True), Numeric("age", 0, 99, integer=True), *SCHEMA.columns[-2:])
        )
        layout, rule = Layout(schema, "rich"), table_generators.RULE
        codes = np.array([[0, 0, 0, 0], [1023, 50, 20, 1], [2**20, 99, 3, 0]])
        rows = layout.rows(codes)
        scaled = rule.scaled(layout, rows)
        np.testing.assert_allclose(scaled[:, 0], [0, 0.5, 1], atol=1e-4)
        np.testing.assert_array_equal(scaled[:, 1:], rows[:, 1:])
        np.testing.assert_array_equal(layout.codes(rule.unscaled(layout, scaled))[[0, 2]], codes[[0, 2]])
        linear = dataclasses.replace(rule, log_from=0)
        np.testing.assert_array_equal(linear.scaled(layout, rows), rows)

    @pytest.mark.slow
    def test_the_features_come_from_the_schema_alone(self):
        features: Any = dataclasses.replace(table_generators.RULE, num_features=40).features(
            jax.random.key(0), Layout(SCHEMA, "rich")
        )
        assert features.num_features == 2 * (40 + 4 + 2 + 2)
        assert features.dim == 2 + 3 + 1
        assert len(features.features.numeric.kernel.gammas) == 3 + 3 * 2

    @pytest.mark.long
    def test_numbers_of_a_wide_table_have_one_kernel(self):
        wide = Layout(table_invented.INVENTED["sounds"].dataset("sounds", 0).schema, "label")
        joint: Any = dataclasses.replace(table_generators.RULE, num_features=40).features(jax.random.key(0), wide)
        np.testing.assert_allclose(joint.features.kernel.gammas[:, 0], [6 / 300, 12 / 300, 24 / 300])

    def test_a_table_without_numbers_is_one_line(self):
        words = Schema((Categorical("a", ("x", "y")), Categorical("b", ("x", "y"))))
        with pytest.raises(InputError, match="without numbers has no frequencies: release it with release_table"):
            table_generators.RULE.features(jax.random.key(0), Layout(words, "b"))


SMALL = dataclasses.replace(
    table_generators.RULE, num_features=60, widths=(20,), styles=2, training=Training(num_steps=20, num_cycles=1)
)


def _small(name, data_dir, seed):
    del data_dir
    dataset = table_invented.INVENTED["counts"].dataset(name, seed)
    return dataclasses.replace(dataset, private=dataset.private.slice(0, 300), test=dataset.test.slice(0, 200))


def _here(function, task):
    return Measured(function(dataclasses.replace(task, limits=table_published.Limits(20, 40, 1e4))), 1.5, 2**20)


class TestRun:
    def _config(self, tmp_path, **changes):
        chosen = {"data_dir": "x", "datasets": ("credit",), "num_seeds": 1, "classifiers": FAST, "secure": False}
        return tables.MerfTablesConfig(**(chosen | {"max_rows": 250, "output_dir": str(tmp_path)} | changes))

    @pytest.mark.long
    def test_a_run_can_be_drawn_and_goes_on(self, tmp_path, monkeypatch):
        monkeypatch.setattr(table_generators, "RULE", SMALL)
        monkeypatch.setattr(tables, "usable_cores", lambda: 1)
        tools = tables.Tools(_small, _here)
        first = tables.run(self._config(tmp_path, sources=("real", "generator")), tools)["credit"]
        assert [cell["source"] for cell in first["cells"]] == ["real", "generator"]
        assert first["cells"][0]["delta"] is None
        result = tables.run(self._config(tmp_path), tools)["credit"]
        assert result["cells"][:2] == first["cells"]
        assert [cell["source"] for cell in result["cells"][2:]] == ["published", "private", "release_table"]
        assert result == json.loads((tmp_path / "merf_tables_credit.json").read_text())
        assert [cell["is_private"] for cell in result["cells"]] == [False, True, False, True, True]
        faults = result["cells"][2]["faults"]
        assert table_published.FAULTS["length"] in faults
        assert table_published.FAULTS["codes"] not in faults
        for cell in result["cells"]:
            assert cell["num_rows"] == {"private": 300, "learnt from": 250, "test": 200}
            assert sum(cell["labels"]) == 250
            assert set(cell["scores"]) == set(FAST)
        assert table_report.mean(result["cells"][0], "f1") > 0.8
        lines = table_report.markdown([result]).splitlines()
        assert [line.split(" | ")[0] for line in lines[2:7]] == [
            f"| credit, {title}" for title in table_report.TITLES.values()
        ]
        assert "| credit, [H]: DP-MERF | 0.772 | 0.637 | – | – | – | 5 | – | – |" in lines
        picture = plot.draw_tables([tmp_path / "merf_tables_credit.json"], tmp_path / "picture.png")
        assert picture.stat().st_size > 10_000

    def test_a_table_that_cannot_be_released_is_named(self, tmp_path):
        def wide(name, data_dir, seed):
            dataset = table_invented.INVENTED["sounds"].dataset(name, seed)
            return dataclasses.replace(dataset, private=dataset.private.slice(0, 100))

        config = self._config(tmp_path, datasets=("isolet",), sources=("release_table",))
        result = tables.run(config, tables.Tools(wide, _here))["isolet"]
        assert "at most 200 columns" in result["cells"][0]["failed"]
        assert "| isolet, release_table | schema: at most 200 columns" in table_report.markdown([result])

    def test_delta_must_be_below_one_over_n(self, tmp_path):
        assert table_sources.delta_of(0.0, "cervical", 686) == 1e-5
        assert table_sources.delta_of(0.0, "intrusion", 395_216) == pytest.approx(1e-6)
        assert table_sources.delta_of(1e-4, "cervical", 686) == 1e-4
        with pytest.raises(InputError, match=r"--delta=0\.01 .* 300 rows of credit: take 0\.001, or 0") as caught:
            tables.run(self._config(tmp_path, delta=0.01), tables.Tools(_small, _here))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data_dir": ""}, "--data_dir is missing"),
        ({"datasets": ("adult_pgm",)}, "expected one or more different names among cervical"),
        ({"sources": ()}, "expected one or more different names among real"),
        ({"classifiers": ("lda", "lda")}, "expected one or more different names among logistic_regression"),
        ({"max_rows": 0}, "--max_rows must be at least 1"),
        ({"delta": 2.0}, "delta must be in"),
        ({"epsilon": -1.0}, "epsilon must be positive"),
    ],
)
def test_bad_configurations_are_one_line(changes, says):
    with pytest.raises(InputError, match=says) as caught:
        tables.MerfTablesConfig(**({"data_dir": "x"} | changes)).validate()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", table_invented.INVENTED)
def test_invented_tables_are_those_of_their_schema(name):
    dataset = table_invented.INVENTED[name].dataset(name, 0)
    assert dataset.private.num_rows == table_invented.INVENTED[name].num_rows
    codes = dataset.schema.encode(dataset.private)
    assert len(np.unique(codes[:, -1])) == dataset.schema.columns[-1].num_codes
    assert np.mean(codes[:, 0] == 0) < 0.5


def test_the_paper_has_every_data_set():
    for name in table_files.NAMES:
        values = table_quoted.quoted(name)
        assert tuple(values) == table_quoted.COLUMNS
        assert all(0 < value < 1 for of_column in values.values() for value in of_column.values())
    assert set(table_published.SETTINGS) == set(table_files.NAMES)
