"""Fine discrete Gaussian noise in releases: what is measured can be loaded, and says what its noise allows."""

import dataclasses
import json
import math

import jax
import numpy as np
import pyarrow as pa
import pytest

import kme_jax
from kme_jax import FourierMap, Gaussian, LabelledMap, Ledger, PrivacyBudget, Schema, Spending, measure
from kme_jax.feature_maps.table import TableMap
from kme_jax.generators import measure_generator
from kme_jax.privacy import calibration, gaussian_delta, zcdp_rho
from kme_jax.privacy.composition import Composition
from kme_jax.privacy.ledger import LedgerError
from kme_jax.privacy.perturb import secure_mechanism
from kme_jax.privacy.totals import Entry, check_total, total
from kme_jax.privacy.verification import check_discreteness
from kme_jax.storage import ReleaseError
from kme_jax.table import Categorical, Numeric, measure_table
from tests import artifacts

ROWS = np.random.default_rng(0).uniform(size=(60, 2))
LABELS = np.arange(60) % 3
FOURIER = FourierMap.from_kernel(jax.random.key(0), Gaussian(gamma=0.5), num_features=64, dim=2)


MAPS = {
    "labelled": (LabelledMap(FOURIER, 3), np.column_stack([ROWS, LABELS])),
    "features": (FOURIER, ROWS),
}
BUDGETS = pytest.mark.parametrize(
    "budget",
    [
        (0.1, 1e-3),
        (4.0, 2e-8),
        (15.0, 1e-3),
        *(pytest.param(more, marks=pytest.mark.slow) for more in ((1.0, 1e-6), (8.0, 1e-6), (10.0, 1e-5))),
    ],
)


def _least_rho(budget, failure_probability):
    """ρ of coarse noise with this budget: fine noise has more."""
    return zcdp_rho(PrivacyBudget(budget.epsilon, budget.delta - failure_probability))


@BUDGETS
@pytest.mark.parametrize("name", MAPS)
@pytest.mark.filterwarnings("ignore")
def test_what_is_measured_can_be_loaded(name, budget, tmp_path):
    """With a ledger, twice. σ is never larger than that of the conversion from ρ."""
    feature_map, rows = MAPS[name]
    budget, ledger = PrivacyBudget(*budget), Ledger(tmp_path / "ledger")
    for again in (False, True):
        spending, folder = Spending(ledger, "rows", allow_repeat=again), tmp_path / f"measured{again}"
        measured = measure_generator(rows, feature_map, budget=budget, spending=spending, folder=folder)
        loaded = kme_jax.load(folder)
        assert loaded.statement == measured.statement
    said = measured.statement
    assert (said["discreteness"] is None) == (ledger.spent("rows")[0].discreteness is None)
    assert said["rho"] >= _least_rho(budget, loaded.composition.failure_probability) * (1 - 1e-6)


@BUDGETS
@pytest.mark.parametrize("units", [1, 3000, None])
def test_noise_of_counts_is_never_larger_than_that_of_the_conversion(units, budget):
    budget, codes = PrivacyBudget(*budget), TableMap.of_codes(3) if units is None else TableMap.of_codes(3, units)
    composition = Composition.of([secure_mechanism(codes.integers(60), 60, budget)], budget)
    least = _least_rho(budget, composition.failure_probability)
    assert composition.rho >= least * (1 - 1e-6)
    if units is None:
        assert composition.rho > 1.02 * least
    if units == 1:
        assert composition.discreteness is None


def test_a_sequence_is_fine_or_coarse_as_a_whole():
    integers, budget = TableMap.of_codes(3).integers(60), PrivacyBudget(1.0, 1e-6)
    for fine, planned in ((True, Composition.planned(budget).rho), (False, zcdp_rho(budget)), (None, zcdp_rho(budget))):
        parts = [secure_mechanism(integers, 60, budget, share=share, fine=fine) for share in (0.3, 0.7)]
        assert Composition.of(parts, budget).rho == pytest.approx(planned, rel=1e-6)
    coarse = TableMap.of_codes(3, 1).integers(60)
    larger = secure_mechanism(coarse, 60, budget, share=0.5, fine=True)
    assert larger.rho < 0.01  # it is as large as it must be to be fine
    assert larger.discreteness <= 0.5 * calibration.largest_discreteness(budget)


def test_a_measurement_that_noise_left_out_is_in_the_statement():
    """Whether a cell stands out, and so whether there is a third measurement, depends on noise."""
    schema = Schema((Numeric("x", 0, 100_000),))
    evenly = pa.table({"x": np.linspace(0, 100_000, 300)})
    for _ in range(5):  # secure noise has no seed, and now and then a cell stands out
        measured = measure_table(evenly, schema, budget=PrivacyBudget(1.0, 1e-5))
        assert measured.statement["rho"] == pytest.approx(Composition.planned(PrivacyBudget(1.0, 1e-5)).rho)
        if len(measured.measured) == 1:
            break
    assert len(measured.measured) == 1
    assert sum(noisy.mechanism.rho for noisy in measured.measured.values()) < 0.95 * measured.statement["rho"]


@pytest.mark.parametrize("epsilon", [19.9, 1.0])
def test_a_table_of_a_single_column_can_be_loaded(epsilon, tmp_path):
    schema, delta = Schema((Categorical("a", ("x", "y")),)), 0.1
    spending = Spending(Ledger(tmp_path / "ledger"), "rows")
    budget = PrivacyBudget(epsilon, delta)
    measured = measure_table(
        pa.table({"a": ["x"] * 9}), schema, budget=budget, spending=spending, folder=tmp_path / "m"
    )
    assert kme_jax.load(tmp_path / "m").statement == measured.statement


def test_a_noisy_count_is_refused_before_it_is_spent(tmp_path):
    schema, ledger = Schema((Categorical("a", ("x", "y")),)), Ledger(tmp_path / "ledger")
    budget = PrivacyBudget(1e-9, 1e-30, "add_remove")
    with pytest.raises(ValueError, match="does not fit 64-bit integers"):
        measure_table(pa.table({"a": ["x"] * 9}), schema, budget=budget, spending=Spending(ledger, "rows"))
    assert not ledger.path.exists()


def test_a_total_of_releases_of_which_one_is_coarse():
    fine = Entry("rows", "t", 1.0, 1e-6, calibration.fine_rho(PrivacyBudget(1.0, 1e-6)), 0.0, discreteness=1e-12)
    coarse = Entry("rows", "t", 1.0, 1e-6, zcdp_rho(PrivacyBudget(1.0, 1e-6)), 0.0)
    both, mixed = total([fine, fine]), total([fine, coarse])
    assert both["discreteness"] == 2e-12
    mu = math.sqrt(2 * both["rho"])
    spent = gaussian_delta(1 / mu, both["epsilon"]) + (1 + math.exp(both["epsilon"])) * 2e-12
    assert 0.999e-6 < spent <= 1e-6
    assert "discreteness" not in mixed
    assert mixed["epsilon"] == pytest.approx(calibration.zcdp_epsilon(mixed["rho"], 1e-6))
    check_total(both, 1.0, 1e-6, fine.rho, 0.0, discreteness=1e-12)
    for change in ({"discreteness": 1e-13}, {"discreteness": 0.0}, {"pure_epsilons": [0.05]}):
        with pytest.raises(ValueError, match="total: "):
            check_total(both | change, 1.0, 1e-6, fine.rho, 0.0, discreteness=1e-12)
    with pytest.raises(ValueError, match="must be absent"):
        check_total(both, 1.0, 1e-6, fine.rho, 0.0)


@pytest.mark.parametrize("change", [{"delta": 0.0}, {"discreteness": 0.0}, {"discreteness": 1.0}, {"discreteness": 1}])
def test_lines_of_a_ledger_that_no_release_has(change, tmp_path):
    entry = Entry("rows", "t", 1.0, 1e-6, 0.02, 0.0, discreteness=1e-12)
    (tmp_path / "ledger").write_text(json.dumps(entry.record) + "\n" + json.dumps(entry.record | change) + "\n\n")
    with pytest.raises(LedgerError, match="line 2 is not a line of a ledger"):
        Ledger(tmp_path / "ledger").spent("rows")


def test_a_statement_cannot_claim_finer_noise(tmp_path):
    points = np.random.default_rng(1).uniform(size=(20, 2))
    measured = measure(ROWS, Gaussian(gamma=0.5), points, budget=PrivacyBudget(1.0, 1e-6), folder=tmp_path / "m")
    said = measured.statement
    assert said["measurements"][0]["calibration"] == "analytic"
    old = {name: value for name, value in said.items() if name != "discreteness"} | {"statement_version": 4}
    for edited in (said | {"discreteness": 1e-300}, said | {"discreteness": None}, old):
        (tmp_path / "m" / "privacy.json").write_text(json.dumps(edited))
        artifacts.seal(tmp_path / "m")
        with pytest.raises(ReleaseError, match=r"privacy\.json"):
            kme_jax.load(tmp_path / "m")
    finer = dataclasses.replace(measured.noisy.mechanism, discreteness=1e-300)
    with pytest.raises(ValueError, match="discreteness"):
        check_discreteness(finer, measured.noisy.feature_map.num_features)
