"""The comparison of all mechanisms of the paper."""

import dataclasses

import numpy as np
import pytest

from experiments import mechanisms
from experiments.common.errors import InputError
from kme_jax import PrivacyBudget, WeightedSample, uniform
from kme_jax.nonprivate import Reference

CONFIG = mechanisms.MechanismsConfig(dims=(1,), num_rows=(50,), epsilons=(1.0, 4.0), num_seeds=2)


def _far(problem, budget, seed):
    """A row at the bound; the closer, the larger ε."""
    return [uniform(np.full((1, problem.rows.shape[1]), mechanisms.UPPER / budget.epsilon))]


def _private(problem, budget, seed):
    return [uniform(problem.rows)] * 2


@pytest.mark.long
def test_a_run_is_written_resumed_tabulated_and_drawn(tmp_path):
    config = dataclasses.replace(CONFIG, output_dir=str(tmp_path))
    config.validate()
    methods = {"far": _far, "private rows": _private}
    result = mechanisms.run(config, methods)
    assert len(result["cells"]) == 2 * 2 * 2
    assert mechanisms.run(config, dict.fromkeys(methods))["cells"] == result["cells"]  # nothing is run again
    for cell in result["cells"]:
        values = [cell[name] for name in mechanisms.ERRORS]
        assert max(values) < 1e-6 if cell["method"] == "private rows" else min(values) > 0.01
    lines = mechanisms.markdown(result).splitlines()
    assert lines[0] == "| D | Δ, four answers, function | N = 50, ε = 1 | N = 50, ε = 4 |"
    assert len(lines) == 4
    assert mechanisms.draw(result, tmp_path / "picture.png").stat().st_size > 10_000


def test_errors_are_root_mean_squares_over_draws():
    problem = mechanisms.problem_of(CONFIG, 1, 50, seed=0)
    reference = Reference.from_rows(problem.kernel, problem.rows)
    samples = [uniform(problem.rows[:1]), uniform(problem.rows)]
    one, both = (mechanisms.errors(problem, reference, some) for some in (samples[:1], samples))
    for name in mechanisms.ERRORS:
        assert both[name] == pytest.approx(one[name] / np.sqrt(2), rel=1e-5)


def test_answers():
    points = np.array([[-500.0, 100.0], [100.0, 700.0], [400.0, 100.0]])
    sample = WeightedSample(points, np.array([0.5, 0.25, 0.25]))
    expected = [0.25 * 0.5 + 0.25 * 0.75, 0.25 * 0.25 + 0.25 * 0.5625, 0.25, 0.0]
    np.testing.assert_allclose(mechanisms.answers(sample.points, sample.weights), expected)


@pytest.mark.slow
def test_every_method_makes_a_database():
    problem = mechanisms.problem_of(dataclasses.replace(CONFIG, num_features=64), 1, 200, seed=0)
    problem = dataclasses.replace(problem, small=2)
    for name, method in mechanisms.METHODS.items():
        if name not in ("algorithm 2", "improved, proposal"):  # they have tests of their own
            for sample in method(problem, PrivacyBudget(1.0, 1e-6), 0):
                assert sample.points.shape[1] == 1
                assert np.isfinite(np.asarray(sample.weights)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dims": (3,)}, "--dims must be of 1 and 2, got 3"),
        ({"num_rows": (1,)}, "--num_rows must be at least 2 each"),
        ({"epsilons": ()}, "--epsilons must be one or more"),
        ({"num_features": 7}, "--num_features must be even"),
        ({"gamma_scale": 0.0}, "--gamma_scale must be positive"),
        ({"num_seeds": 0}, "--num_seeds"),
        ({"delta": 2.0}, "delta"),
    ],
)
def test_what_cannot_be_run(change, message):
    with pytest.raises(InputError, match=message) as error:
        dataclasses.replace(CONFIG, **change).validate()
    assert "\n" not in str(error.value)
