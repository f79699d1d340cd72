import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest

from experiments.accuracy import plot, proposal, robustness, subset
from experiments.accuracy.config import AccuracyConfig
from experiments.common.errors import InputError
from experiments.common.published import balog2018
from experiments.common.results import write_json

SHORT = {"num_atoms": 5, "num_trajectories": 2, "num_leaps": 3}


def _tiny(folder):
    return AccuracyConfig(
        dims=(2,), sizes=(5, 40), epsilons=(0.1, 1.0), num_rows=400, num_draws=3, output_dir=str(folder)
    )


@pytest.fixture
def tiny(tmp_path):
    return _tiny(tmp_path)


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    """A configuration, its result, and the file with it."""
    folder = tmp_path_factory.mktemp("accuracy")
    config = _tiny(folder)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        result = subset.run(config)
    return config, result, (folder / "accuracy.json").read_text()


@pytest.mark.long
def test_a_small_run_and_its_picture(small_run, tmp_path):
    _, result, text = small_run
    assert json.loads(text) == result
    (tmp_path / "accuracy.json").write_text(text)
    assert [(cell["num_points"], cell["epsilon"]) for cell in result["cells"]] == [
        (5, 0.1),
        (5, 1.0),
        (40, 0.1),
        (40, 1.0),
    ]
    for cell in result["cells"]:
        steps = {name: values["mean"] for name, values in cell["steps"].items()}
        assert steps["diameter"] < steps["calibration"] < steps["published"]
        assert len(cell["distances"]["improved"]) == 3
        better = min(cell["uniform"], steps["diameter"])
        assert cell["ratio_to_better"] == pytest.approx(steps["improved"] / better)
        assert cell["ratio_to_published"] == pytest.approx(steps["published"] / steps["improved"])
    text = subset.table(result)
    assert len(text.splitlines()) == 6
    assert f"{result['cells'][0]['steps']['improved']['mean']:.3g}" in text
    assert plot.draw(tmp_path / "accuracy.json", tmp_path / "a.png").stat().st_size > 10_000


@pytest.mark.long
def test_an_interrupted_run_goes_on(small_run):
    config, first, _ = small_run
    kept = dict(first, cells=[dict(first["cells"][0], uniform=-1.0), *first["cells"][1:3]])
    write_json(pathlib.Path(config.output_dir) / "accuracy.json", kept)
    again = subset.run(config)
    assert again["cells"][0]["uniform"] == -1.0  # not computed again
    np.testing.assert_allclose(
        [c["distances"]["improved"] for c in again["cells"]],
        [c["distances"]["improved"] for c in first["cells"]],
        rtol=1e-6,
    )
    other = subset.run(dataclasses.replace(config, sizes=(5,), epsilons=(0.1,), num_draws=1))
    assert other["cells"][0]["uniform"] > 0  # other flags: from the start
    assert other["cells"][0]["never_worse"] is None


@pytest.mark.long
def test_releases_from_a_proposal_are_measured_and_resumed(tmp_path):
    settings = proposal.ReleaseSettings(
        num_features=200, num_compared=1, sampler=SHORT, representation={"num_steps": 3}
    )
    config = AccuracyConfig(
        dims=(1,), epsilons=(0.1, 1.0), num_rows=400, num_releases=2, output_dir=str(tmp_path), sizes=(5,)
    )
    result = proposal.run(config, settings)
    assert json.loads((tmp_path / "accuracy_proposal.json").read_text()) == result
    assert [(record["epsilon"], record["seed"]) for record in result["cells"]] == [
        (0.1, 0),
        (1.0, 0),
        (0.1, 1),
        (1.0, 1),
    ]
    for record in result["cells"]:
        few = {"improved", "resampled"}
        assert set(record["distances"]) == (few if record["seed"] else set(proposal.MEASURES))
        assert all(0 < value < 2 for value in record["distances"].values())
        assert record["denoised"] < record["noise"]
    rows = proposal.summary(result)
    assert [row["num_seeds"] for row in rows] == [2, 2]
    assert all(row["published"] is None for row in rows)  # other settings
    mean = np.mean([record["distances"]["improved"] for record in result["cells"][::2]])
    assert rows[0]["means"]["improved"] == pytest.approx(mean)
    first = result["cells"][0]["distances"]
    assert rows[0]["means"]["joint"] == first["joint"]
    assert rows[0]["ratios"]["unweighted"] == first["unweighted"] / first["improved"]
    assert f"{mean:.3g}" in proposal.markdown(result)
    write_json(tmp_path / "accuracy_proposal.json", dict(result, cells=result["cells"][:1]))
    assert proposal.run(config, settings)["cells"][0] == result["cells"][0]


@pytest.mark.long
def test_gains_on_other_data(tmp_path):
    settings = robustness.RobustnessSettings(
        data=((300, 1, 1.0), (300, 1, 4.0)),
        seeds=(0, 1),
        num_points=20,
        num_draws=2,
        sizes=(5, 20),
        release=proposal.ReleaseSettings(num_features=200, sampler=SHORT),
    )
    config = AccuracyConfig(epsilons=(0.1, 1.0), output_dir=str(tmp_path))
    result = robustness.run(config, settings)
    assert json.loads((tmp_path / "accuracy_robustness.json").read_text()) == result
    rows = robustness.summary(result)
    assert [(row["gamma_scale"], row["public"], row["epsilon"]) for row in rows] == [
        (scale, public, epsilon)
        for scale in (1.0, 4.0)
        for public, epsilon in (("subset", 0.1), ("subset", 1.0), ("proposal", 0.1))
    ]
    means = result["cells"][1]["subset"][1]
    assert rows[1]["gains"][1] == means["published"] / means["improved"]
    assert len(means["distances"]["uniform"]) == 2
    assert means["uniform"] == np.mean(means["distances"]["uniform"])
    proposed = result["cells"][0]["proposal"]
    assert rows[2]["gains"][0] == proposed["published"] / proposed["improved"]
    assert proposed["published"] == min(proposed["algorithm1"].values())
    lines = robustness.markdown(result).splitlines()
    assert len(lines) == 8
    assert f"{rows[1]['gains'][0]:.1f}, {rows[1]['gains'][1]:.1f}" in lines[3]


def test_the_published_best_is_the_least_of_both_algorithms():
    best = proposal.published_best()
    panel = balog2018()["figure2_D5"]
    assert best[5, 0.01] == min(min(panel["algorithm1"]["0.01"]), min(panel["algorithm2"]["0.01"]))
    assert set(best) == {(dim, epsilon) for dim in (2, 5) for epsilon in (0.01, 0.1, 1.0)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parts": ("subset", "other")}, "--parts must be of subset, proposal, robustness"),
        ({"num_releases": 0}, "--num_releases must be at least 1"),
        ({"sizes": ()}, "--sizes must be positive"),
        ({"dims": (2, 2)}, "--dims must be positive and different"),
        ({"sizes": (500,)}, "--sizes has 500, more than --num_rows=400"),
        ({"num_draws": 0}, "--num_draws must be at least 1"),
        ({"epsilons": (2.0,)}, "classical"),
        ({"delta": 0.0}, "delta"),
        ({"gamma_scale": float("inf")}, "--gamma_scale must be positive and finite"),
        ({"data_seed": -1}, "--data_seed must be in"),
    ],
)
def test_bad_flags_are_one_line(tiny, change, message):
    with pytest.raises(InputError, match=message) as error:
        dataclasses.replace(tiny, **change).validate()
    assert "\n" not in str(error.value)
