import json
import math

import pytest

from experiments.audit import attack, mechanisms, plot, run
from experiments.audit.config import AuditConfig
from experiments.common.errors import InputError
from kme_jax import PrivacyBudget


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audit")
    config = AuditConfig(epsilons=(10.0,), num_runs=1500, num_releases=20, num_cases=200, output_dir=str(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "whole_command", _few_commands)
        return run.run(config), folder


def _few_commands(pair, budget, num_releases, progress, attack=run.whole_command):
    """Each takes a second. Neither 5 nor 20 of them could refute the claim for ε = 10: the attack has to run."""
    return attack(pair, budget, 5, progress)


@pytest.mark.long
def test_claims_hold_and_broken_mechanisms_are_found(result):
    cells = result[0]["cells"]
    assert len(cells) == 36
    for cell in cells:
        assert cell["violated"] == cell["should_be_violated"], cell
        if cell["mechanism"] in ("discrete Gaussian", "simulated Gaussian"):
            # The attack is strong enough to find nearly all there is.
            assert cell["share_of_diameter"] > 0.98
            assert cell["lower_bound"] > 0.75 * cell["claim"]  # of few runs, at random
    (whole,) = [cell for cell in cells if cell["mechanism"] == "release of a DataFrame"]
    assert whole["share_of_diameter"] == pytest.approx(1)
    shares = {
        "release, one person more": 1,
        "release, one person more, no cut (broken)": 8,  # forty rows instead of five
        "release, one weighted row more": 1,
        "release, one weighted row more, no bound (broken)": 5,
    }
    for name, share in shares.items():
        (cell,) = [cell for cell in cells if cell["mechanism"] == name]
        assert cell["share_of_diameter"] == pytest.approx(share, rel=1e-3)
    (one_more,) = [cell for cell in cells if cell["mechanism"] == "release, one row more"]
    assert 0.999 < one_more["share_of_diameter"] <= 1
    (cases,) = [cell for cell in cells if cell["mechanism"] == "codes of cells"]
    assert cases["violations"] == 0
    assert cases["compared"] == 200


@pytest.mark.long
def test_it_is_resumed_drawn_and_tabulated(result, tmp_path):
    audited, folder = result
    assert json.loads((folder / "audit.json").read_text()) == audited
    text = run.markdown(audited)
    assert len(text.splitlines()) == 2 + len(audited["cells"])
    assert plot.draw(folder / "audit.json", tmp_path / "audit.png").stat().st_size > 10_000


def _attacks(num_runs):
    """By name, those of an audit at ε = 1."""
    config = AuditConfig(epsilons=(1.0,), num_runs=num_runs)
    return {name: (broken, attack) for name, _, _, broken, attack in run.attacks(config)}


def _outcome(attack, *, broken):
    """The outcome of an attack, or of the first of three that finds a broken mechanism out.

    Secure noise has no seed, and about one attack in thirty misses a mechanism that is broken.
    """
    for _ in range(3):
        outcome = attack()
        if not broken or outcome["lower_bound"] > outcome["claim"]:
            break
    return outcome


@pytest.mark.parametrize(
    ("name", "num_runs"),
    [
        pytest.param("exponential mechanism", 4000, marks=pytest.mark.slow),
        pytest.param("Gaussian process", 20_000, marks=pytest.mark.long),
    ],
)
def test_the_other_mechanisms_of_the_paper(name, num_runs):
    """At ε = 1, the claim holds, and a weaker mechanism is found out."""
    for title, (broken, call) in _attacks(num_runs).items():
        if title.startswith(name):
            outcome = _outcome(lambda call=call: call(lambda *_: None), broken=broken)
            assert outcome["share_of_diameter"] > 0.98
            assert (outcome["lower_bound"] > outcome["claim"]) == broken


@pytest.mark.parametrize(
    "name",
    [pytest.param("polynomial", marks=pytest.mark.slow), pytest.param("tensor sketch", marks=pytest.mark.long)],
)
def test_maps_of_rows_in_a_ball(name):
    """At ε = 1, the claim holds, it is nearly attained, and less noise is found out."""
    pair, budget = mechanisms.pairs(0)[name], PrivacyBudget(1.0, 1e-6)
    for factor in (1.0, math.sqrt(0.5)):
        outcome = _outcome(
            lambda factor=factor: mechanisms.secure_gaussian(pair, budget, 20_000, lambda *_: None, factor=factor),
            broken=factor < 1,
        )
        assert 0.98 < outcome["share_of_diameter"] <= 1
        assert (outcome["lower_bound"] > outcome["claim"]) == (factor < 1)


@pytest.mark.slow
def test_the_bound_is_one(rng):
    """Two normal distributions one apart: μ = 1. The bound is below it in all of 8 repetitions, and close."""
    bounds = [
        attack.lower_bound(lambda which, runs: rng.normal(float(which), 1, runs), 20_000, attack.gaussian_mu)[
            "lower_bound"
        ]
        for _ in range(8)
    ]
    assert max(bounds) < 1
    assert min(bounds) > 0.9


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"epsilons": ()}, "epsilons"),
        ({"epsilons": (-1.0,)}, "epsilons"),
        ({"num_runs": 5}, "num_runs"),
        ({"num_cases": 5}, "num_cases"),
        ({"delta": 2.0}, "delta"),
    ],
)
def test_what_cannot_be_run(change, match):
    with pytest.raises(InputError, match=match):
        AuditConfig(**change).validate()
