"""What a contributor adds, from outside of the package: a kernel, a feature map, a kind of noise and a solver by public
names alone, from private rows to synthetic points, through a folder; and a file format, a figure and a field of the
privacy statement, each as one entry of the list that CONTRIBUTING names."""

import contextlib
import dataclasses
import itertools
import json
import math
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pytest
import scipy.optimize

import kme_jax
from experiments.figures import all_panels, definition, panel, plot, redraw, report
from experiments.figures.catalogue import FIGURES
from experiments.figures.config import MixtureConfig
from kme_jax import (
    Bounds,
    FourierMap,
    Gaussian,
    LabelledMap,
    Ledger,
    MixedMap,
    NoisyEmbedding,
    PrivacyBudget,
    Release,
    Spending,
    SubspaceMap,
    WeightedSample,
    adaptive_weights,
    cli,
    closed_form_weights,
    exponential_mechanism,
    l1_ball_weights,
    mean_embedding,
    measure,
    perturb,
)
from kme_jax.feature_maps import FeatureMap, IntegerMap, facts
from kme_jax.kernels import Kernel
from kme_jax.privacy import Calibrated, Noise, register_noise
from kme_jax.privacy import statement as statements
from kme_jax.storage import ReleaseError, storable
from kme_jax.storage.files import FileError
from kme_jax.storage.formats import FORMATS
from kme_jax.storage.formats.base import Format, Reader
from kme_jax.table import Numeric, Schema, open_table, write_table
from tests import artifacts

BOUNDS = Bounds.create([0, 0], [1, 1], ["left", "right"])
BUDGET = PrivacyBudget(1.0, 1e-6)
ROOT = pathlib.Path(__file__).resolve().parent.parent
OLD_FOLDERS = sorted((ROOT / "tests" / "data" / "folders_of_0.1").iterdir())
POINTS = np.random.default_rng(1).uniform(size=(60, 2))
SUBSPACE = SubspaceMap.from_points(Gaussian(5.0), POINTS)


@storable()
@kme_jax.pytree_dataclass
@dataclasses.dataclass(frozen=True)
class Cauchy(Kernel):
    """k(x, y) = 1 / (1 + ‖x − y‖² / ℓ²)."""

    length: float

    def __call__(self, x, y):
        return 1 / (1 + jnp.sum(jnp.square((x - y) / self.length)))

    def pairwise(self, x, y, *, expand=False):
        return 1 / (1 + jnp.sum(jnp.square((x[:, None, :] - y[None, :, :]) / self.length), axis=2))

    @property
    def diagonal_bound(self):
        return 1.0

    @property
    def is_nonnegative(self):
        return True

    def evaluation_error(self, dim):
        return 4 * (dim + 8) * 2.0**-53


@storable()
@kme_jax.pytree_dataclass
@dataclasses.dataclass(frozen=True)
class Unstated(Cauchy):
    """The same, without its error in float64: that of a class it derives from is not enough for built-in kernels, and
    a kernel of one's own may refuse too."""

    def evaluation_error(self, dim):
        return Kernel.evaluation_error(self, dim)


@storable()
@kme_jax.pytree_dataclass
@dataclasses.dataclass(frozen=True)
class Moments(FeatureMap):
    """ψ(x) = (1, x_1, ..., x_d, x_1², ..., x_d²) / √(1 + 2d) for rows in [0, 1]^d: entries from 0 to 1/√(1 + 2d)."""

    columns: int = dataclasses.field(metadata={"static": True})

    @property
    def dim(self):
        return self.columns

    @property
    def kernel(self):
        return Cauchy(1.0)  # of the span, for the statement

    @property
    def num_features(self):
        return 1 + 2 * self.dim

    @property
    def diameter(self):
        """Entries are from 0 to 1/√F, so no two vectors differ by more than 1; and 1e-9 for rounding."""
        return 1 + 1e-9

    @property
    def published_diameter(self):
        return self.diameter

    @property
    def row_bound(self):
        return 1.0

    def covers(self, rows):
        return np.all((rows >= 0) & (rows <= 1), axis=1)

    def __call__(self, x):
        ones = jnp.ones((len(x), 1), x.dtype)
        return jnp.concatenate([ones, x, jnp.square(x)], axis=1) / math.sqrt(self.num_features)

    def weighted_sum(self, rows, weights, *, rows_planned=None, devices=None, progress=None):
        features = np.concatenate([np.ones((len(rows), 1)), rows, np.square(rows)], axis=1)
        return np.asarray(weights, np.float64) @ features / math.sqrt(self.num_features)

    def integers(self, num_rows):
        return IntegerMoments(self, float(2**20))


@dataclasses.dataclass(frozen=True, eq=False)
class IntegerMoments(IntegerMap):
    """q(x) = ⌊s ψ(x)⌋ between 0 and s/√F."""

    feature_map: Moments
    units: float

    @property
    def diameter(self):
        """Entries are integers from 0 to s/√F, so no two vectors differ by more than s."""
        return self.units

    @property
    def certain_diameter(self):
        return self.diameter

    def sum(self, rows, usable, *, rows_planned=None, devices=None, progress=None):
        rows = np.asarray(rows, np.float64)[np.asarray(usable, bool)]
        features = np.concatenate([np.ones((len(rows), 1)), rows, np.square(rows)], axis=1)
        most = self.units / math.sqrt(self.feature_map.num_features)
        return np.clip(np.floor(most * features), 0, math.floor(most)).astype(np.int64).sum(axis=0)

    def released(self, total):
        return total


class DoubledLaplace(Noise):
    """Laplace noise twice as wide as it has to be: (ε/2, 0), and so (ε, 0)."""

    name = "doubled laplace"
    norm = "L1"
    square_variance = 5.0

    def variance(self, scale):
        return 2 * scale**2

    def sensitivity(self, diameter, num_features, *, integers):
        sensitivity = math.sqrt(num_features) * diameter
        return math.ceil(sensitivity) if integers else sensitivity

    def calibrate(self, sensitivity, budget, calibration, share):
        return Calibrated(2 * sensitivity / budget.epsilon, "doubled", budget.epsilon)

    def calibrate_securely(self, sensitivity, budget, share, num_features, fine=None):
        return Calibrated(2 * sensitivity / budget.epsilon, "doubled", budget.epsilon)

    def add_securely(self, values, scale):
        import opendp.prelude as dp

        space = dp.vector_domain(dp.atom_domain(T=dp.i64)), dp.l1_distance(T=dp.i64)
        return np.asarray(dp.m.make_laplace(*space, scale=scale)(values))

    def draw(self, key, shape, dtype):
        return jax.random.laplace(key, shape, dtype)

    def check(self, mechanism, budget, share):
        if not math.isclose(mechanism.scale, 2 * mechanism.sensitivity / budget.epsilon):
            raise ValueError("the noise is not doubled")


register_noise(DoubledLaplace())


def _rows():
    return np.random.default_rng(0).beta(2, 5, (20_000, 2))


def _carried(measured, folder):
    """Through a folder, to synthetic points whose means are close to those of the rows."""
    measured.save(folder)
    loaded = kme_jax.load(folder)
    assert loaded.statement == measured.statement
    np.testing.assert_array_equal(loaded.noisy.coordinates, measured.noisy.coordinates)
    synthetic = loaded.synthesise()
    synthetic.save(folder.with_name("release"))
    again = kme_jax.load(folder.with_name("release"))
    np.testing.assert_array_equal(again.sample.weights, synthetic.sample.weights)
    np.testing.assert_allclose(again.sample.expectation(lambda z: z), _rows().mean(axis=0), atol=0.05)
    return loaded


@pytest.mark.long
def test_a_kernel(tmp_path):
    points = np.random.default_rng(1).uniform(size=(60, 2))
    loaded = _carried(measure(_rows(), Cauchy(0.3), points, budget=BUDGET, bounds=BOUNDS), tmp_path / "measured")
    assert loaded.noisy.feature_map.kernel == Cauchy(0.3)
    with pytest.raises(ValueError, match=r"^Unstated: the kernel states no bound of its rounding error"):
        measure(_rows(), Unstated(0.3), points, budget=BUDGET, bounds=BOUNDS)


@pytest.mark.parametrize(("noise", "delta"), [("gaussian", 1e-6), ("laplace", 0.0), ("doubled laplace", 0.0)])
def test_a_map_with_any_noise(tmp_path, noise, delta):
    points, budget = np.random.default_rng(1).uniform(size=(60, 2)), PrivacyBudget(1.0, delta)
    measured = measure(_rows(), Moments(2), points, budget=budget, bounds=BOUNDS, noise=noise)
    loaded = _carried(measured, tmp_path / "measured")
    assert type(loaded.noisy.feature_map) is Moments
    np.testing.assert_array_equal(loaded.points, points)
    (described,) = loaded.statement["measurements"]
    assert described["noise"] == noise
    assert described["feature_map"]["proof"].endswith("(IntegerMoments.diameter)")
    assert {"kernel", "public points"} <= set(loaded.statement["public_inputs"])


def test_the_doubled_noise_is_doubled():
    points, budget = np.random.default_rng(1).uniform(size=(60, 2)), PrivacyBudget(1.0, 0.0)
    scales = [
        measure(_rows(), Moments(2), points, budget=budget, bounds=BOUNDS, noise=noise).noisy.mechanism.scale
        for noise in ("laplace", "doubled laplace")
    ]
    assert math.isclose(scales[1], 2 * scales[0], rel_tol=1e-6)


def test_noise_without_rho_is_for_delta_0():
    points = np.random.default_rng(1).uniform(size=(60, 2))
    with pytest.raises(ValueError, match="states no ρ, so it is for delta = 0"):
        measure(_rows(), Moments(2), points, budget=BUDGET, bounds=BOUNDS, noise="doubled laplace")
    with pytest.raises(ValueError, match='noise must be "gaussian" or "laplace" or'):
        measure(_rows(), Moments(2), points, budget=BUDGET, bounds=BOUNDS, noise="white")


@kme_jax.pytree_dataclass
@dataclasses.dataclass(frozen=True)
class _Wrong(Moments):
    """Moments that state a wrong bound."""

    stated: float = dataclasses.field(default=1.0)
    norm: float = dataclasses.field(default=1.0)
    stated_integers: float = dataclasses.field(default=1.0)
    missing: int = dataclasses.field(default=0, metadata={"static": True})  # integers at the end
    kind: type = dataclasses.field(default=np.int64, metadata={"static": True})  # of the integers

    @property
    def diameter(self):
        return self.stated

    @property
    def norm_bound(self):
        return self.norm

    def integers(self, num_rows):
        wrong = self

        class Integers(IntegerMoments):
            diameter = property(lambda self: wrong.stated_integers * self.units)

            def sum(self, rows, usable, **options):
                return super().sum(rows, usable, **options)[: wrong.num_features - wrong.missing].astype(wrong.kind)

        return Integers(self, float(2**20))


@pytest.mark.parametrize(
    ("features", "message"),
    [
        # The rows (1, 1) and the zero vector are 1 apart. Corners of the square are √0.8 apart.
        (_Wrong(2, stated=0.98), r"^_Wrong: features of public rows are 1 apart, but its diameter is 0.98$"),
        (_Wrong(2, norm=0.9), r"^_Wrong: features of a public row have norm 1, but its norm_bound is 0.9$"),
        (_Wrong(2, stated_integers=0.9), r"^Integers: integers of public rows are .* apart, but its diameter is .*$"),
        (_Wrong(2, missing=1), r"^Integers: expected 5 int64 numbers of a row, got int64 \[4\]$"),
        (_Wrong(2, kind=np.float64), r"^Integers: expected 5 int64 numbers of a row, got float64 \[5\]$"),
    ],
    ids=["diameter", "norm", "integers", "too few", "floats"],
)
def test_a_map_whose_features_of_public_rows_contradict_its_bounds_is_refused(features, message, tmp_path):
    """Before anything is spent. The corners of the bounds are enough, and so are public points without bounds."""
    ledger = Ledger(tmp_path / "ledger")
    spending = Spending(ledger, "rows")
    corner = np.ones((1, 2))
    for options in ({"public": np.full((3, 2), 0.5), "bounds": BOUNDS}, {"public": corner}):
        with pytest.raises(ValueError, match=message):
            measure(_rows(), features, budget=BUDGET, spending=spending, **options)
    assert not (tmp_path / "ledger").exists()
    with pytest.raises(ValueError, match=message):
        exponential_mechanism(_rows(), features, corner, 1, budget=BUDGET)


def test_true_bounds_are_not_refused():
    assert measure(_rows(), Moments(2), POINTS, budget=BUDGET).noisy.feature_map == Moments(2)
    fourier = FourierMap.from_kernel(jax.random.key(0), Gaussian(5.0), 64, 2)
    for features in (SUBSPACE, fourier, LabelledMap(fourier, 2)):
        rows = np.column_stack([POINTS, np.arange(60) % 2])[:, : features.dim]
        facts.check_diameter_at(features, rows)
        facts.check_integers_at(features.integers(100), rows)


def test_points_without_features_are_refused():
    """The weights of such points would be those of features that say nothing about them."""
    outside = np.array([[0.5, 0.5], [0.5, 1.5]])
    with pytest.raises(ValueError, match=r"^points: some have no features in this map; use points within its bounds$"):
        measure(_rows(), Moments(2), outside, budget=BUDGET)
    noisy = perturb(jax.random.key(0), mean_embedding(Moments(2), _rows()), BUDGET)
    for weights in (adaptive_weights, closed_form_weights, l1_ball_weights):
        with pytest.raises(ValueError, match=r"^points: some have no features"):
            weights(noisy, outside)


def test_many_columns_have_some_of_their_corners():
    few, many = facts.corners_of_box(np.zeros(3), np.ones(3)), facts.corners_of_box(np.zeros(9), np.full(9, 2.0))
    assert sorted(map(tuple, few)) == sorted(itertools.product([0.0, 1.0], repeat=3))
    assert many.shape == (32, 9)
    assert {0.0, 2.0} == set(many.ravel())


def test_a_map_without_integers_is_refused():
    class Other(Moments):
        def integers(self, num_rows):
            return FeatureMap.integers(self, num_rows)

    with pytest.raises(ValueError, match=r"^Other has no integer version, and secure noise needs one$"):
        measure(_rows(), Other(2), np.ones((3, 2)), budget=BUDGET, bounds=BOUNDS)


@pytest.mark.parametrize(
    ("kernel", "public", "noise", "match"),
    [
        (Moments(2), None, "gaussian", "Moments has no frequencies: give points to be weighted"),
        (Gaussian(5.0), None, "laplace", "a proposal needs Gaussian noise"),
        (SUBSPACE, POINTS, "gaussian", "the feature map was made from public points"),
    ],
)
def test_what_could_not_be_synthesised_is_refused_before_it_is_spent(kernel, public, noise, match, tmp_path):
    ledger, budget = Ledger(tmp_path / "ledger"), PrivacyBudget(1.0, 0.0 if noise == "laplace" else 1e-6)
    with pytest.raises(ValueError, match=match):
        measure(_rows(), kernel, public, budget=budget, bounds=BOUNDS, noise=noise, spending=Spending(ledger, "rows"))
    assert not ledger.path.exists()


@pytest.mark.long
def test_a_subspace_of_ones_own(tmp_path):
    loaded = _carried(measure(_rows(), SUBSPACE, budget=BUDGET, bounds=BOUNDS), tmp_path / "measured")
    assert loaded.points is None
    assert loaded.proposal is None


@pytest.mark.parametrize("features", [SUBSPACE, Moments(2)], ids=["subspace", "moments"])
def test_integers_that_are_not_said_to_be_of_rows_are_no_part_of_others(features):
    """The diameter of a subspace holds for the sum after the basis, and not for the sum before."""
    for whole in (MixedMap(features, (3,)), LabelledMap(features, 2)):
        with pytest.raises(ValueError, match=f"{type(features).__name__} has no integer version"):
            whole.integers(100)


def test_names_are_taken_once():
    with pytest.raises(ValueError, match="Cauchy: a class of this name is stored already"):

        @storable()
        @dataclasses.dataclass(frozen=True)
        class Cauchy:
            pass


def non_negative_weights(embedding: NoisyEmbedding, points: np.ndarray) -> WeightedSample:
    """argmin ‖μ̃ − Σ_m w_m ψ(z_m)‖² over w_m ≥ 0, over their sum, for points z [M, d] and any map."""
    with jax.enable_x64(True):
        features = np.asarray(embedding.feature_map(jnp.asarray(points, jnp.float64)))
    weights, _ = scipy.optimize.nnls(features.T, embedding.coordinates)
    return WeightedSample(points, weights / weights.sum(), embedding.mechanism)


def test_a_solver(tmp_path):
    points = np.random.default_rng(1).uniform(size=(60, 2))
    measured = measure(_rows(), Moments(2), points, budget=BUDGET, bounds=BOUNDS)
    sample = non_negative_weights(measured.noisy, points)
    Release(measured, sample, seed=0).save(tmp_path / "release")
    loaded = kme_jax.load(tmp_path / "release")
    np.testing.assert_array_equal(loaded.sample.weights, sample.weights)
    np.testing.assert_allclose(loaded.sample.expectation(lambda z: z), _rows().mean(axis=0), atol=0.01)
    assert loaded.statement == measured.statement


@pytest.mark.parametrize(
    ("points", "weights", "match"),
    [
        ([[0.1, 0.2], [0.3, 0.4]], [0.5, 0.4], "weights: expected a probability vector"),
        ([[0.1, 0.2], [0.3, 0.4]], [1.5, -0.5], "weights: expected a probability vector"),
        ([[0.1, 0.2], [0.3, 1.4]], [0.5, 0.5], "points: a point is beyond the bounds"),
    ],
)
def test_a_sample_that_no_release_can_have_is_not_saved(tmp_path, points, weights, match):
    measured = measure(_rows(), Moments(2), POINTS, budget=BUDGET, bounds=BOUNDS)
    sample = WeightedSample(np.array(points), np.array(weights), measured.noisy.mechanism)
    with pytest.raises(ValueError, match=match):
        Release(measured, sample, seed=0).save(tmp_path / "release")
    assert not (tmp_path / "release").exists()


class ArrowReader(Reader):
    """Reader of .rows files, which are of Arrow."""

    def __init__(self, path: pathlib.Path):
        self._path = path
        with self._open() as file:
            fields = file.schema
            self._num_rows = sum(file.get_batch(i).num_rows for i in range(file.num_record_batches))
        super().__init__(str(path), fields.names, fields.types)

    @contextlib.contextmanager
    def _open(self):
        try:
            with pa.ipc.open_file(self._path) as file:
                yield file
        except (pa.ArrowException, OSError, ValueError):  # their messages may show private cells
            raise FileError(f"{self._path}: is damaged, or no Arrow file") from None

    def count(self):
        return self._num_rows

    def _read(self, names=None):
        with self._open() as file:
            for i in range(file.num_record_batches):
                yield file.get_batch(i)


def write_arrow(table, file):
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def test_a_file_format(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(FORMATS, ".rows", Format(".rows", ArrowReader, write_arrow))
    path, schema = tmp_path / "table.rows", Schema((Numeric("age", 0, 9, integer=True),))
    write_table(path, pa.table({"age": [3, 9, 20, None]}))
    source = open_table(path, schema)
    assert source.num_rows == 4
    (codes,) = source.codes()
    in_memory = pa.table({"age": [3, 9, 20, None]})
    np.testing.assert_array_equal(codes, next(open_table(in_memory, schema).codes()))
    assert cli.main(["schema", str(path), f"--output={tmp_path / 'schema.json'}"]) == 0
    folder, output = ROOT / "tests" / "data" / "folders_of_0.1" / "table_release", tmp_path / "synthetic.rows"
    assert cli.main(["sample", str(folder), f"--output={output}", "--num_rows=30"]) == 0
    assert ArrowReader(output).count() == 30
    path.write_bytes(path.read_bytes()[:-9])
    assert cli.main(["schema", str(path), f"--output={tmp_path / 'other.json'}"]) == 2
    assert capsys.readouterr().err == f"error: {path}: is damaged, or no Arrow file\n"


def _corners(config, rows):
    del rows  # the points must not depend on them
    return np.random.default_rng(config.data_seed).choice([-1000.0, 1000.0], (config.max_points, config.dim))


@pytest.mark.long
def test_a_figure(tmp_path, monkeypatch):
    """It is computed, drawn and reported with the others. Its results are those of figure 1, which are committed."""
    figure = definition.MixtureFigure("corners", "Corners", "M (number of corners)", _corners, points_are_rows=True)
    for name in tuple(FIGURES):
        monkeypatch.delitem(FIGURES, name)
    monkeypatch.setitem(FIGURES, "corners", figure)
    seen = []

    def run_panel(figure, config, reference):
        points = figure.public_points(config, reference)
        seen.append((figure.name, points.shape))
        result = json.loads((ROOT / "figures" / f"figure1_D{config.dim}.json").read_text())
        return result | {"experiment": figure.name, "samples": b""}

    monkeypatch.setattr(panel, "private_reference", lambda config, rows, stages: rows)
    monkeypatch.setattr(panel, "run_panel", run_panel)
    (paths,) = all_panels.run(MixtureConfig(num_rows=50, max_points=7, output_dir=str(tmp_path))).values()
    assert seen == [("corners", (7, 2)), ("corners", (7, 5))]
    assert [path.name for path in paths] == ["corners_D2.json", "corners_D5.json"]
    assert (tmp_path / "corners.png").stat().st_size > 5000
    results = [json.loads(path.read_text()) for path in paths]
    for table in (report.table(results), report.best_table(results)):
        assert "corners" in table
        assert "figure1" not in table
    drawn = []
    monkeypatch.setattr(plot, "draw", lambda figure, *paths: drawn.append(figure))
    redraw.main(redraw.RedrawConfig(input=tuple(map(str, paths)), output=str(tmp_path / "again.png")))
    assert drawn == [figure]


NUM_NUMBERS = statements.StatementField(
    name="num_numbers",
    since=7,
    schema={"type": "integer", "minimum": 1, "description": "How many noisy numbers the release has."},
    value=lambda said, mechanisms: sum(m["feature_map"]["num_features"] for m in said["measurements"]),
    text=lambda value: f"The release has {value} noisy numbers.",
)


def test_a_field_of_the_statement(tmp_path, monkeypatch):
    points = np.random.default_rng(1).uniform(size=(60, 2))
    before = measure(_rows(), Moments(2), points, budget=BUDGET, bounds=BOUNDS, folder=tmp_path / "before")
    monkeypatch.setattr(statements, "FIELDS", (NUM_NUMBERS,))
    assert statements.schema()["required"] == [*statements.schema(6)["required"], "num_numbers"]
    after = measure(_rows(), Moments(2), points, budget=BUDGET, bounds=BOUNDS, folder=tmp_path / "after")
    assert after.statement == before.statement | {"statement_version": 7, "num_numbers": 5}
    assert kme_jax.load(tmp_path / "after").statement == after.statement
    assert "The release has 5 noisy numbers.\n" in statements.describe(after.statement)
    assert "noisy numbers" not in statements.describe(before.statement)
    assert kme_jax.load(tmp_path / "before").statement == before.statement
    for change in ({"num_numbers": 6}, {"num_numbers": "5"}, {"statement_version": 6}, {"statement_version": 8}):
        path = tmp_path / "after" / "privacy.json"
        path.write_text(json.dumps(after.statement | change))
        artifacts.seal(tmp_path / "after")
        with pytest.raises(ReleaseError, match=r"privacy\.json"):
            kme_jax.load(tmp_path / "after")


@pytest.mark.parametrize("folder", OLD_FOLDERS, ids=lambda path: path.name)
def test_folders_without_a_later_field_still_load(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(statements, "FIELDS", (NUM_NUMBERS,))
    loaded = kme_jax.load(folder)
    loaded.save(tmp_path / "again")
    said = json.loads((tmp_path / "again" / "privacy.json").read_text())
    assert kme_jax.load(tmp_path / "again").statement == loaded.statement
    assert ("num_numbers" in said) == (said["statement_version"] == 7)
    shutil.copytree(folder, tmp_path / "copy")
    said = json.loads((folder / "privacy.json").read_text())
    (tmp_path / "copy" / "privacy.json").write_text(json.dumps(said | {"statement_version": 7}))
    artifacts.seal(tmp_path / "copy")
    with pytest.raises(ReleaseError, match=r"privacy\.json"):
        kme_jax.load(tmp_path / "copy")


@kme_jax.pytree_dataclass
@dataclasses.dataclass(frozen=True)
class _Claims(Kernel):
    """A kernel that states facts which may be false."""

    factor: float
    shift: float
    is_nonnegative: bool = dataclasses.field(default=True, metadata={"static": True})

    diagonal_bound = 1.0

    def __call__(self, x, y):
        return self.pairwise(x[None], y[None])[0, 0]

    def pairwise(self, x, y, *, expand=False):
        squares = jnp.sum(jnp.square(x[:, None] - y[None]), axis=2)
        near = jnp.where(squares < 0.3, 1.0, 0.0)
        return self.factor * jnp.cos(jnp.sqrt(squares + 1e-30) * 3) * (1 - self.shift) + self.shift * near


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (_Claims(4.0, 0.0, False), "k.z, z. is 4 at a point, above diagonal_bound = 1"),
        (_Claims(1.0, 0.0), "k is -.* at two points, but is_nonnegative is True"),
        (_Claims(1.0, 1.0), "it is not a kernel: its values"),
    ],
    ids=["diagonal", "sign", "indefinite"],
)
def test_facts_of_a_kernel_that_its_values_contradict_are_refused(kernel, message):
    points = np.random.default_rng(0).uniform(size=(60, 2))
    with pytest.raises(ValueError, match=message):
        SubspaceMap.from_points(kernel, points)


class _Untraced(Cauchy):
    """A kernel whose class nobody has decorated."""


@kme_jax.pytree_dataclass
@dataclasses.dataclass(frozen=True)
class _InFloat32(Cauchy):
    def pairwise(self, x, y, *, expand=False):
        return super().pairwise(x.astype(jnp.float32), y.astype(jnp.float32))


@kme_jax.pytree_dataclass
@dataclasses.dataclass(frozen=True)
class _OtherPairs(Cauchy):
    def pairwise(self, x, y, *, expand=False):
        return jnp.square(super().pairwise(x, y))


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (_OtherPairs(1.0), "_OtherPairs: pairwise gives .* for two points, where"),
        (0.5, "expected a kernel, .* got a float"),
        (_Untraced(1.0), "_Untraced: JAX cannot trace this kernel: .* kme_jax.pytree_dataclass"),
        (_InFloat32(1.0), "are in float32"),
    ],
    ids=["pairs", "number", "untraced", "float32"],
)
def test_kernels_with_a_mistake_have_an_error_of_one_line(kernel, message):
    with pytest.raises(ValueError, match=message):
        SubspaceMap.from_points(kernel, np.random.default_rng(0).uniform(size=(60, 2)))


@kme_jax.pytree_dataclass
@dataclasses.dataclass(frozen=True)
class _NotStorable(Cauchy):
    pass


def test_a_class_that_cannot_be_saved_says_how_it_can():
    with pytest.raises(TypeError, match=r"_NotStorable cannot be written: .* kme_jax.storage.storable\(\)"):
        measure(_rows(), _NotStorable(1.0), POINTS, budget=PrivacyBudget(1.0, 1e-6), bounds=BOUNDS)
