import dataclasses
import functools
import json
import pathlib

import jax
import numpy as np
import pytest

from experiments import (
    accuracy,
    accuracy_proposal,
    accuracy_robustness,
    accuracy_subset,
    audit,
    common,
    plots,
    published,
    security,
)


def _tiny(folder):
    return accuracy.AccuracyConfig(
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
        result = accuracy_subset.run(config)
    return config, result, (folder / "accuracy.json").read_text()


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
    text = accuracy_subset.table(result)
    assert len(text.splitlines()) == 6
    assert f"{result['cells'][0]['steps']['improved']['mean']:.3g}" in text
    assert plots.draw_accuracy(tmp_path / "accuracy.json", tmp_path / "a.png").stat().st_size > 10_000


def test_an_interrupted_run_goes_on(small_run):
    config, first, _ = small_run
    kept = dict(first, cells=[dict(first["cells"][0], uniform=-1.0), *first["cells"][1:3]])
    common.write_json(pathlib.Path(config.output_dir) / "accuracy.json", kept)
    again = accuracy_subset.run(config)
    assert again["cells"][0]["uniform"] == -1.0  # not computed again
    np.testing.assert_allclose(
        [c["distances"]["improved"] for c in again["cells"]],
        [c["distances"]["improved"] for c in first["cells"]],
        rtol=1e-6,
    )
    other = accuracy_subset.run(dataclasses.replace(config, sizes=(5,), epsilons=(0.1,), num_draws=1))
    assert other["cells"][0]["uniform"] > 0  # other flags: from the start
    assert other["cells"][0]["never_worse"] is None


@pytest.mark.slow
def test_releases_from_a_proposal_are_measured_and_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(accuracy_proposal, "NUM_FEATURES", 200)
    monkeypatch.setattr(accuracy_proposal, "COMPARED", 1)
    short = functools.partial(accuracy_proposal.posterior_mean, num_atoms=5, num_trajectories=2, num_leaps=3)
    monkeypatch.setattr(accuracy_proposal, "posterior_mean", short)
    brief = functools.partial(accuracy_proposal.represent, num_steps=3)
    monkeypatch.setattr(accuracy_proposal, "represent", brief)
    config = accuracy.AccuracyConfig(
        dims=(1,), epsilons=(0.1, 1.0), num_rows=400, num_releases=2, output_dir=str(tmp_path), sizes=(5,)
    )
    result = accuracy_proposal.run(config)
    assert json.loads((tmp_path / "accuracy_proposal.json").read_text()) == result
    settings = [(record["epsilon"], record["seed"]) for record in result["cells"]]
    assert settings == [(0.1, 0), (1.0, 0), (0.1, 1), (1.0, 1)]
    for record in result["cells"]:
        few = {"improved", "resampled"}
        assert set(record["distances"]) == (few if record["seed"] else set(accuracy_proposal.MEASURES))
        assert all(0 < value < 2 for value in record["distances"].values())
        assert record["denoised"] < record["noise"]
    rows = accuracy_proposal.summary(result)
    assert [row["num_seeds"] for row in rows] == [2, 2]
    assert all(row["published"] is None for row in rows)  # other settings
    mean = np.mean([record["distances"]["improved"] for record in result["cells"][::2]])
    assert rows[0]["means"]["improved"] == pytest.approx(mean)
    first = result["cells"][0]["distances"]
    assert rows[0]["means"]["joint"] == first["joint"]
    assert rows[0]["ratios"]["unweighted"] == first["unweighted"] / first["improved"]
    assert f"{mean:.3g}" in accuracy_proposal.markdown(result)
    common.write_json(tmp_path / "accuracy_proposal.json", dict(result, cells=result["cells"][:1]))
    assert accuracy_proposal.run(config)["cells"][0] == result["cells"][0]


@pytest.mark.slow
def test_gains_on_other_data(tmp_path, monkeypatch):
    monkeypatch.setattr(accuracy_proposal, "NUM_FEATURES", 200)
    short = functools.partial(accuracy_proposal.posterior_mean, num_atoms=5, num_trajectories=2, num_leaps=3)
    monkeypatch.setattr(accuracy_proposal, "posterior_mean", short)
    monkeypatch.setattr(accuracy_robustness, "SETTINGS", ((300, 1, 1.0), (300, 1, 4.0)))
    monkeypatch.setattr(accuracy_robustness, "SEEDS", (0, 1))
    monkeypatch.setattr(accuracy_robustness, "_NUM_POINTS", 20)
    monkeypatch.setattr(accuracy_robustness, "_DRAWS", 2)
    monkeypatch.setattr(accuracy_robustness, "_SIZES", (5, 20))
    config = accuracy.AccuracyConfig(epsilons=(0.1, 1.0), output_dir=str(tmp_path))
    result = accuracy_robustness.run(config)
    assert json.loads((tmp_path / "accuracy_robustness.json").read_text()) == result
    rows = accuracy_robustness.summary(result)
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
    lines = accuracy_robustness.markdown(result).splitlines()
    assert len(lines) == 8
    assert f"{rows[1]['gains'][0]:.1f}, {rows[1]['gains'][1]:.1f}" in lines[3]


def test_the_published_best_is_the_least_of_both_algorithms():
    best = accuracy_proposal._published()
    panel = published._balog2018()["figure2_D5"]
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
    with pytest.raises(common.InputError, match=message) as error:
        dataclasses.replace(tiny, **change).validate()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("accuracy", accuracy_subset),
        ("accuracy_proposal", accuracy_proposal),
        ("accuracy_robustness", accuracy_robustness),
        ("audit", audit),
        ("security", security),
    ],
)
def test_the_readme_shows_the_committed_table(name, module):
    result = json.loads((common.REPOSITORY / "figures" / f"{name}.json").read_text())
    assert module.markdown(result) in (common.REPOSITORY / "README.md").read_text()
