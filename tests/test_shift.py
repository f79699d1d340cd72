"""Public rows under shift: populations, the break-even, and a small run."""

import dataclasses
import json
import math

import numpy as np
import pytest

from experiments.common.errors import InputError
from experiments.common.mixture import COMPONENT_SD, mixture
from experiments.shift import measure, plot, report
from experiments.shift.config import ShiftConfig
from experiments.shift.populations import Clusters

# --- populations -----------------------------------------------------------------------------------------------------


def test_the_population_is_that_of_the_private_rows():
    population = Clusters.of_figures(2)
    rows, own = mixture(20_000, 2), population.rows(20_000, np.random.default_rng(0))
    for sample in (rows, own):
        np.testing.assert_allclose(sample.mean(axis=0), population.shares @ population.means, atol=6)
        assert sample[:, 0].std() == pytest.approx(population.first_deviation, rel=0.02)


def test_a_bias_is_a_density_ratio():
    """Weighted means of the population are means of the biased population."""
    population = Clusters.of_figures(2)
    rows = population.rows(400_000, np.random.default_rng(0))
    weights = np.exp(rows[:, 0] / population.first_deviation)
    biased = population.biased(1.0)
    own = biased.rows(400_000, np.random.default_rng(1))
    for function in (lambda x: x[:, 0], lambda x: x[:, 1], lambda x: x[:, 0] ** 2):
        expected = weights @ function(rows) / weights.sum()
        assert function(own).mean() == pytest.approx(expected, rel=0.02)
    assert own[:, 0].mean() > rows[:, 0].mean() + population.first_deviation / 3


def test_no_shift_is_the_population_and_a_strong_bias_is_the_outermost_cluster():
    population = Clusters.of_figures(5)
    for same in (population.biased(0.0), population.moved(0.0, np.random.default_rng(0))):
        np.testing.assert_allclose(same.means, population.means)
        np.testing.assert_allclose(same.shares, population.shares)
    strong = population.biased(1000.0)
    assert strong.shares.max() == pytest.approx(1)
    assert strong.shares.argmax() == population.means[:, 0].argmax()


def test_every_cluster_moves_as_far_in_its_own_direction():
    population = Clusters.of_figures(5)
    moves = population.moved(70.0, np.random.default_rng(0)).means - population.means
    np.testing.assert_allclose(np.linalg.norm(moves, axis=1), 70)
    assert np.linalg.matrix_rank(moves) == 5


@pytest.mark.parametrize("scenario", ["biased", "moved"])
def test_public_rows_of_all_strengths_share_random_numbers(scenario):
    config = ShiftConfig()
    plain, shifted, other = (
        measure.public_rows(config, scenario, 2, strength, draw) for strength, draw in ((0.0, 0), (1.0, 0), (0.0, 1))
    )
    assert plain.shape == (500, 2)
    differences = shifted - plain
    if scenario == "moved":  # one difference for each cluster
        lengths = np.linalg.norm(differences, axis=1)
        np.testing.assert_allclose(lengths, 1 / np.sqrt(2 * measure.kernel_of(2).gamma))
        assert len(np.unique(differences.round(6), axis=0)) == 10
    else:
        assert shifted[:, 0].mean() > plain[:, 0].mean() + COMPONENT_SD
    assert np.abs(other - plain).max() > COMPONENT_SD


# --- the break-even --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("distances", "other", "expected"),
    [
        ([0.01, 0.1, 1.0], 0.1, 1.0),
        ([0.01, 0.1, 1.0], 10**-1.5, 0.5),
        ([0.01, 0.1, 1.0], 10**-0.25, 3**0.75),
        ([0.01, 0.1, 1.0], 0.001, 0.0),
        ([0.01, 0.1, 1.0], 2.0, math.inf),
        ([0.2, 0.05, 1.0], 0.1, 3 ** (math.log(2) / math.log(20))),  # the last crossing counts
        ([0.2, 0.5, 0.05], 0.1, math.inf),
    ],
)
def test_the_break_even_of_invented_lines(distances, other, expected):
    assert report.break_even([0.0, 1.0, 3.0], distances, other) == pytest.approx(expected)


# --- runs ------------------------------------------------------------------------------------------------------------


def _small(tmp_path, **changes):
    return ShiftConfig(
        dims=(2,), biases=(0.0, 2.0, 4.0), moves=(0.0, 1.0, 4.0), epsilons=(0.1, 1.0), num_rows=1000, num_points=50,
        num_features=200, num_random_features=200, num_draws=2, num_proposals=2, output_dir=str(tmp_path), **changes,
    )  # fmt: skip


def _invented(config, reference, part, dim, strength, draw):
    """`improved` is 0.01 · 10^strength for the first ε and a tenth of it for the second, without noise."""
    if part == "proposal":
        return {"improved": [0.1, 0.1]}
    level = 0.01 * 10**strength
    return {"uniform": 4 * level, "limit": level / 20, "improved": [level, level / 10], "published": [level, level]}


@pytest.fixture
def invented(monkeypatch):
    """Nothing is measured, and the embedding of the private rows is not computed."""
    monkeypatch.setattr(measure, "measured_distances", _invented)
    monkeypatch.setattr(measure.Reference, "from_rows", lambda *_: None)


def _refused(*_):
    raise AssertionError("it was measured before")


def test_a_run_is_written_resumed_and_tabulated(tmp_path, invented, monkeypatch):
    config = _small(tmp_path)
    config.validate()
    result = measure.run(config)
    assert json.loads((tmp_path / "shift.json").read_text()) == result
    assert len(result["cells"]) == 2 * 3 * 2 + 2
    monkeypatch.setattr(measure, "measured_distances", _refused)
    assert measure.run(config)["cells"] == result["cells"]
    assert measure.run(dataclasses.replace(config, parts=("moved",)))["cells"] == result["cells"]
    lines = report.markdown(result).splitlines()
    assert len(lines) == 2 + 2 * 2 * 3
    assert "| biased sample | 2 | 0.1 | b = 2 | 4.00 ± 0.00 | 1.00 ± 0.00 | **1.00 ± 0.00** | 75 % | " in lines[3]
    assert "**" not in lines[2]
    values = [(row["scenario"], row["epsilon"], row["value"]) for row in report.break_evens(result)]
    assert values == [
        ("biased", 0.1, 1),
        ("biased", 1.0, 2),
        ("moved", 0.1, 1),
        ("moved", 1.0, pytest.approx(4 ** (1 / 3))),
    ]
    assert report.break_even_markdown(result).splitlines()[2].endswith("| 2 | 0.1 | 0.100 ± 0.000 | **1** | 1 to 1 |")


@pytest.mark.long
def test_the_picture(tmp_path, invented):
    assert plot.draw(measure.run(_small(tmp_path)), tmp_path / "shift.png").stat().st_size > 50_000


def test_what_was_not_measured_is_not_tabulated(tmp_path, invented):
    result = measure.run(_small(tmp_path, parts=("biased",)))
    assert len(report.markdown(result).splitlines()) == 2 + 2 * 3
    assert len(report.break_even_markdown(result).splitlines()) == 2


def test_break_evens_at_the_ends_are_named(tmp_path, invented, monkeypatch):
    def ends(*arguments):
        distances = _invented(*arguments)
        return distances if "uniform" in distances else {"improved": [0.001, 1000.0]}

    monkeypatch.setattr(measure, "measured_distances", ends)
    lines = report.break_even_markdown(measure.run(_small(tmp_path, parts=("biased", "proposal")))).splitlines()[2:]
    assert "**no shift**" in lines[0]
    assert "**above 4**" in lines[1]


@pytest.mark.long
def test_a_small_run_measures_all_methods(tmp_path):
    result = measure.run(_small(tmp_path))
    for cell in result["cells"]:
        distances = cell["distances"]
        if cell["part"] == "proposal":
            assert list(distances) == ["improved"]
            continue
        assert set(distances) == set(report.METHODS)
        values = [distances["uniform"], *distances["improved"], *distances["published"]]
        assert all(distances["limit"] < value + 1e-6 for value in values)
        assert distances["published"][1] < distances["published"][0]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"parts": ("biased", "other")}, "--parts"),
        ({"dims": ()}, "--dims: expected 1 or more"),
        ({"biases": (1.0,)}, "--biases: expected 2 or more"),
        ({"moves": (1.0, 0.5)}, "--moves"),
        ({"moves": (-1.0, 0.5)}, "--moves"),
        ({"biases": (0.0, math.inf)}, "--biases"),
        ({"epsilons": (1.0, 0.1)}, "--epsilons"),
        ({"epsilons": (0.1, 2.0)}, "classical"),
        ({"num_features": 15}, "--num_features must be even"),
        ({"num_random_features": 0}, "--num_random_features"),
        ({"num_draws": 1}, "--num_draws must be at least 2"),
        ({"num_points": 0}, "--num_points"),
        ({"delta": 2.0}, "delta"),
    ],
)
def test_errors_are_one_line(change, match):
    with pytest.raises(InputError, match=match) as error:
        ShiftConfig(**change).validate()
    assert "\n" not in str(error.value)
