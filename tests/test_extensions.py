"""A kernel, a feature map and a kind of noise from outside of the package, by public names alone: from private rows to
synthetic points, through a folder."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest

import kme_jax
from kme_jax import Bounds, Gaussian, LabelledMap, Ledger, MixedMap, PrivacyBudget, Spending, SubspaceMap, measure
from kme_jax.feature_maps import FeatureMap, IntegerMap
from kme_jax.kernels import Kernel
from kme_jax.privacy import Calibrated, Noise, register_noise
from kme_jax.storage import storable

BOUNDS = Bounds.create([0, 0], [1, 1], ["left", "right"])
BUDGET = PrivacyBudget(1.0, 1e-6)
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

    def calibrate_securely(self, sensitivity, budget, share):
        return Calibrated(2 * sensitivity / budget.epsilon, "doubled", budget.epsilon)

    def add_securely(self, values, scale):
        import opendp.prelude as dp

        space = dp.vector_domain(dp.atom_domain(T=dp.i64)), dp.l1_distance(T=dp.i64)
        return np.asarray(dp.m.make_laplace(*space, scale=scale)(values))

    def draw(self, key, shape, dtype):
        import jax

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
