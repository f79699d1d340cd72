"""The eight tables of [H]: their files, rows of generators, design matrices, and the twelve classifiers."""

import gzip

import numpy as np
import pyarrow as pa
import pytest
from scipy.io import savemat

from experiments.common.errors import InputError
from experiments.merf import table_classifiers, table_files
from experiments.merf.table_files import Layout
from experiments.tables import datasets
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
        of_groups = datasets._split("x", pa.table({"group": groups}), every.schema, "seizure", 0, groups)
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
            ("epileptic", lambda path: path.write_bytes(path.read_bytes()[:500]), "epileptic"),
            ("epileptic", lambda path: path.write_bytes(gzip.compress(b"a,b\n1,2\n")), "columns"),
            (
                "epileptic",
                lambda path: _text(path, b"S", b"seven"),
                "ids must be those of recordings",
            ),
            ("isolet", lambda path: path.unlink(), r"isolet1_1560x617\.mat"),
            ("isolet", lambda path: path.write_bytes(path.read_bytes()[:900]), "isolet"),
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
