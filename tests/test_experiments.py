import dataclasses
import functools
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

import kme_jax
from experiments.common.errors import InputError
from experiments.common.mixture import mixture, proposal
from experiments.common.published import balog2018, published_panel
from experiments.common.results import write_json
from experiments.figure1 import FIGURE as FIGURE1
from experiments.figure2 import FIGURE as FIGURE2
from experiments.figures import all_panels, panel, plot, report
from experiments.figures.algorithm1 import point_grid
from experiments.figures.config import MixtureConfig, epsilon_key, load_rows
from kme_jax.nonprivate import Reference
from kme_jax.privacy.budget import PrivacyBudget

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIGURES = {figure.name: figure for figure in (FIGURE1, FIGURE2)}


@pytest.fixture
def tiny(tmp_path):
    return MixtureConfig(
        num_rows=400,
        max_points=60,
        num_noise_draws=300,
        num_repeats=2,
        num_features=100,
        improved_trajectories=1,
        improved_sizes=(10,),
        improved_draws=2,
        output_dir=str(tmp_path),
    )


def _command(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_mixture_is_the_published_one():
    rows = mixture(100_000, 2)
    assert rows.shape == (100_000, 2)
    rng = np.random.RandomState(0)
    means = rng.normal(100, 200, (10, 2))
    assert np.abs(rows[:1000, None] - means).max(axis=2).min(axis=1).max() < 6 * 30
    np.testing.assert_array_equal(proposal(10_000, 2)[:7], proposal(7, 2))


def test_the_grid_is_the_published_one():
    for name in ("figure1_D2", "figure2_D5"):
        assert point_grid(10_000).tolist() == balog2018()[name]["num_points"]
    assert point_grid(1).tolist() == [1]


@pytest.mark.long
@pytest.mark.parametrize("name", FIGURES)
def test_a_panel_at_a_tiny_size(name, tiny, tmp_path):
    result = json.loads(panel.write_panel(panel.run_panel(FIGURES[name], tiny), tiny.output_dir).read_text())
    with np.load(f"{tiny.output_dir}/{name}_D2_samples.npz") as samples:
        assert samples["points_4"].shape == (60, 2)
    assert result["experiment"] == name
    assert result["config"]["epsilons"] == [0.01, 0.1, 1.0]
    grid, drawn = result["num_points"], result["curves"]
    assert grid[0] == 1
    assert grid[-1] == 60
    assert list(drawn["algorithm1"]) == ["0.01", "0.1", "1"]
    rows = mixture(400, 2)
    reference = Reference.from_rows(tiny.kernel, rows)
    points = rows[:60] if name == "figure1" else proposal(60, 2)
    for i in (0, len(grid) // 2, len(grid) - 1):
        m = grid[i]
        assert drawn["uniform_baseline"][i] == pytest.approx(
            reference.distance(points[:m], np.full(m, 1 / m)), abs=1e-7
        )
        assert drawn["projection"][i] <= drawn["uniform_baseline"][i] + 1e-7
    for epsilon, curve in drawn["algorithm1"].items():
        expected = np.asarray(drawn["algorithm1_expected_rms"][epsilon])
        np.testing.assert_allclose(curve["rms"], expected, rtol=0.15)
        assert np.all(np.asarray(curve["low"]) <= curve["rms"])
        assert np.all(np.asarray(curve["rms"]) <= curve["high"])
    assert ("algorithm2" in drawn) == (name == "figure2")
    assert drawn["improved_num_points"] == [10]
    for curve, largest in (("algorithm2", 56), ("algorithm2_joint", 31)):
        if name == "figure2":
            assert drawn[f"{curve}_num_points"][-1] == largest
            for epsilon in drawn[curve].values():
                assert len(epsilon["rms"]) == len(drawn[f"{curve}_num_points"])
                assert np.all(np.asarray(epsilon["low"]) <= epsilon["high"])
                assert min(epsilon["low"]) == min(epsilon["best_of_each_repeat"])
            assert drawn["algorithm2_largest_relative_gap"] <= 1e-5
            assert drawn["algorithm2_joint_largest_l1_norm"] <= 1 + 1e-6
    assert len(result["checks"]) == 5
    for check in result["checks"]:
        assert check["exact"] == pytest.approx(check["by_coordinates"], abs=1e-5)


@pytest.mark.long
def test_the_start_of_the_published_curves(tmp_path):
    """All rows, but only the first 150 points: projection and baseline as published, the draw inside the band."""
    config = MixtureConfig(dim=5, max_points=150, num_noise_draws=400, output_dir=str(tmp_path))
    result = panel.run_panel(FIGURE1, config)
    published = published_panel(result)
    index = [i for i, m in enumerate(result["num_points"]) if m in published["num_points"]]
    theirs = [published["num_points"].index(result["num_points"][i]) for i in index]
    assert len(index) > 20
    for name in ("projection", "uniform_baseline"):
        np.testing.assert_allclose(
            np.asarray(result["curves"][name])[index], np.asarray(published[name])[theirs], atol=1e-9
        )
    assert "inside the 0.5–99.5 % band" in report.summary([result])


def test_published_numbers_are_shown_for_published_settings_only(tiny):
    config = dataclasses.asdict(tiny) | {"gamma": 5e-5, "num_features": 10_000}
    result = {"experiment": "figure1", "num_rows": 100_000, "config": config}
    assert published_panel(result)["num_points"][0] == 1
    for changed in (
        {"num_features": 100},
        {"dataset": "x"},
        {"gamma": 1e-4},
        {"delta": 1e-5},
        {"dim": 3},
        {"data_seed": 1},
    ):
        assert published_panel(result | {"config": result["config"] | changed}) is None


@pytest.mark.long
def test_options_change_the_noise(tiny):
    sigma, single = {}, {"epsilons": (0.1,), "improved_draws": 1, "num_noise_draws": 2}
    for calibration in ("classical", "analytic"):
        for diameter in ("published", "proved"):
            config = dataclasses.replace(tiny, calibration=calibration, diameter=diameter, **single)
            sigma[calibration, diameter] = panel.run_panel(FIGURE1, config)["mechanisms"]["0.1"]["sigma"]
    assert sigma["classical", "published"] / sigma["analytic", "published"] == pytest.approx(1.46, abs=0.01)
    assert sigma["analytic", "published"] / sigma["analytic", "proved"] == pytest.approx(2**0.5, rel=1e-3)


@pytest.mark.long
def test_another_database(tmp_path):
    rows = np.random.default_rng(1).normal(40, 60, (2500, 3))
    np.savez(tmp_path / "some.npz", X_private=rows)
    words = [f"--dataset={tmp_path}/some.npz", "--gamma=3e-5", "--dim=3", "--num_rows=2000", "--max_points=60"]
    run = _command(
        "experiments.figure1", *words, "--epsilons=0.05,0.5", "--num_noise_draws=50", f"--output_dir={tmp_path}/out"
    )
    assert run.returncode == 0, run.stderr
    result = json.loads((tmp_path / "out" / "figure1_D3.json").read_text())
    assert list(result["curves"]["algorithm1"]) == ["0.05", "0.5"]
    assert result["num_rows"] == 2000
    assert result["environment"]["jax"]
    assert (tmp_path / "out" / "figure1_D3.png").stat().st_size > 10_000
    drawn = _command(
        "experiments.figures.redraw", f"--input={tmp_path}/out/figure1_D3.json", f"--output={tmp_path}/again.pdf"
    )
    assert drawn.returncode == 0, drawn.stderr
    assert (tmp_path / "again.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.long
def test_the_improved_curve_of_figure_1_is_that_of_the_library(tiny):
    result = panel.run_panel(FIGURE1, tiny)
    rows = load_rows(tiny)
    reference = Reference.from_rows(tiny.kernel, rows)
    curves = result["curves"]
    assert curves["improved_num_points"][0] == 10
    assert curves["improved_num_draws"] == [2]
    for epsilon in tiny.epsilons:
        distances = []
        for draw in range(2):
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(tiny.seed), 4), draw)
            sample = kme_jax.improved(key, rows, tiny.kernel, rows[:10], budget=PrivacyBudget(epsilon, tiny.delta))
            distances.append(reference.distance(sample.points, sample.weights))
        curve = curves["improved"][epsilon_key(epsilon)]
        assert curve["mean"][0] == pytest.approx(np.mean(distances), rel=1e-6)
        assert curve["low"][0] == pytest.approx(min(distances), rel=1e-6)


@pytest.mark.long
def test_the_improved_curve_of_figure_2_is_closer_than_algorithm_1():
    config = MixtureConfig(
        num_rows=20_000,
        max_points=100,
        epsilons=(0.1,),
        num_noise_draws=10,
        num_repeats=1,
        num_features=500,
        joint_steps=5,
        improved_trajectories=4,
        improved_sizes=(10, 31),
    )
    curves = panel.run_panel(FIGURE2, config)["curves"]
    assert curves["improved_num_points"] == [10, 31]
    assert curves["improved"]["0.1"]["rms"][-1] < 0.5 * min(curves["algorithm1"]["0.1"]["rms"])


@pytest.mark.long
def test_figures_draws_all_panels(tmp_path, monkeypatch):
    small = MixtureConfig(
        num_rows=300,
        max_points=40,
        num_noise_draws=20,
        num_repeats=1,
        num_features=50,
        improved_trajectories=1,
        improved_sizes=(10,),
        improved_draws=2,
        output_dir=str(tmp_path),
    )
    paths = all_panels.run(small)
    monkeypatch.setattr(all_panels, "num_at_once", lambda: 4)  # as on a GPU
    side_by_side = all_panels.run(dataclasses.replace(small, output_dir=str(tmp_path / "side_by_side")))
    for path, other in itertools.chain(*(zip(paths[name], side_by_side[name], strict=True) for name in paths)):
        curves, others = (json.loads(p.read_text())["curves"] for p in (path, other))
        assert curves == others
    assert {path.name for of_figure in paths.values() for path in of_figure} == {
        f"figure{figure}_D{dim}.json" for figure in (1, 2) for dim in (2, 5)
    }
    for name in ("figure1.png", "figure1.pdf", "figure2.png", "figure2.pdf"):
        assert (tmp_path / name).stat().st_size > 5000
    results = [json.loads(path.read_text()) for of_figure in paths.values() for path in of_figure]
    assert report.table(results).count("projection distance") == 4 * 2
    best = report.best_table(results)
    assert best.count("algorithm 2, joint") == 2 * 3
    assert best.count("improved") == 4 * 3
    assert "within" in report.summary(results)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def _write(path, text):
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilons": (0.0,)}, "epsilon must be positive"),
        ({"epsilons": (-0.1,)}, "epsilon must be positive"),
        ({"epsilons": (0.1, 0.1)}, "has a value twice"),
        ({"epsilons": ()}, "--epsilons is empty"),
        ({"epsilons": (2.0,)}, 'epsilon <= 1, got 2.0: use "analytic"'),
        ({"delta": 0.0}, "delta = 0 is not possible with Gaussian noise"),
        ({"delta": 1.0}, r"delta must be in \[0, 1\)"),
        ({"delta": -0.5}, r"delta must be in \[0, 1\)"),
        ({"gamma": 0.0}, "gamma must be positive"),
        ({"gamma": float("nan")}, "gamma must be positive"),
        ({"dim": 0}, "--dim must be at least 1"),
        ({"max_points": 0}, "--max_points must be at least 1"),
        ({"max_points": 401}, "--max_points=401 is more than the 400 private rows"),
        ({"num_rows": -1}, "--num_rows must be at least 1"),
        ({"improved_trajectories": 0}, "--improved_trajectories must be at least 1"),
        ({"improved_sizes": (0, 5)}, "--improved_sizes must be at least 1"),
        ({"improved_draws": 0}, "--improved_draws must be at least 1"),
        ({"num_noise_draws": 0}, "--num_noise_draws must be at least 1"),
        ({"tolerance": 0.0}, "--tolerance must be positive"),
        ({"tolerance": 1.0}, "--tolerance must be below"),
        ({"proposal_scale": -1.0}, "--proposal_scale must be positive"),
        ({"calibration": "loose"}, "calibration must be"),
        ({"diameter": "small"}, "--diameter must be"),
        ({"seed": -1}, "--seed must be in"),
        ({"dataset": "x.npz"}, "--dataset needs --gamma"),
        ({"dataset": "/nowhere/x.npz", "gamma": 0.1}, "no such file; give an .npz file with an array X_private"),
    ],
)
def test_bad_configurations_are_refused_before_work(changes, message, tiny):
    with pytest.raises(InputError, match=message) as caught:
        panel.run_panel(FIGURE1, dataclasses.replace(tiny, **changes))
    assert "\n" not in str(caught.value)
    assert not list(pathlib.Path(tiny.output_dir).iterdir())


def test_bad_datasets_are_refused(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    good = np.ones((500, 2))
    cases = {
        "not a readable .npz file": _write(folder / "text.npz", "hello"),
        "it has no array X_private": folder / "other.npz",
        "expected 2 columns, got 3": folder / "wide.npz",
        "expected a non-empty array": folder / "flat.npz",
        "row 7 is NaN or infinite": folder / "nan.npz",
        "fewer than --num_rows=400": folder / "short.npz",
        "expected numbers": folder / "words.npz",
    }
    np.savez(folder / "other.npz", rows=good)
    np.savez(folder / "wide.npz", X_private=np.ones((500, 3)))
    np.savez(folder / "flat.npz", X_private=np.ones(500))
    np.savez(folder / "nan.npz", X_private=np.where(np.arange(500)[:, None] == 7, np.inf, good))
    np.savez(folder / "short.npz", X_private=good[:399])
    np.savez(folder / "words.npz", X_private=np.full((500, 2), "a"))
    np.save(folder / "single.npy", good)
    cases["it has no array X_private "] = folder / "single.npy"
    for message, path in cases.items():
        with pytest.raises(InputError, match=message.strip()) as caught:
            panel.run_panel(FIGURE1, dataclasses.replace(tiny, dataset=str(path), gamma=5e-5))
        assert "\n" not in str(caught.value)


@pytest.mark.long
def test_duplicate_public_points_are_dropped_not_fatal(tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "twice.npz"
    np.savez(path, X_private=np.repeat(mixture(200, 2), 2, axis=0))
    result = panel.run_panel(FIGURE1, dataclasses.replace(tiny, dataset=str(path), gamma=5e-5, num_noise_draws=2))
    assert result["rank"][-1] <= 30


_long = functools.partial(pytest.param, marks=pytest.mark.long)  # each starts a program


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["experiments.figure1", "--epsilons=a"], "error: --epsilons must be numbers"),
        _long(["experiments.figure1", "extra"], "error: unknown word 'extra'"),
        _long(["experiments.figure2", "--epsilons=0"], "error: epsilon must be positive"),
        _long(["experiments.figure1", "--output_dir=/proc/nope"], "error: --output_dir=/proc/nope: cannot write there"),
        _long(["experiments.figures", "--quick", "--output_dir=figures"], "error: --quick never writes into figures/"),
        _long(["experiments.figures.redraw", "--input=missing.json", "--output=x.png"], "error: --input=missing.json"),
    ],
)
def test_errors_are_one_line_and_exit_status_2(words, message):
    run = _command(*words)
    assert run.returncode == 2
    assert run.stderr.strip().splitlines()[-1].startswith(message)
    assert "Traceback" not in run.stderr


@pytest.mark.long
def test_an_unknown_flag_is_an_error():
    run = _command("experiments.figure1", "--epsilon=1")
    assert run.returncode != 0
    assert "Unknown command line flag 'epsilon'. Did you mean: epsilons ?" in run.stderr


@pytest.mark.long
def test_help_lists_every_flag():
    text = _command("experiments.figure1", "--help").stdout
    for field in dataclasses.fields(MixtureConfig):
        assert f"--{field.name}:" in text or f"]{field.name}:" in text, field.name


@pytest.mark.long
def test_an_interrupted_run_leaves_no_result(tmp_path):
    run = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "experiments.figure1",
            "--num_rows=50000",
            f"--output_dir={tmp_path}",
        ],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in run.stderr:  # much is left to do from here on
        if "orthonormal basis" in line:
            break
    run.send_signal(signal.SIGINT)
    rest = run.communicate(timeout=120)[1]
    assert run.returncode == 130, rest
    assert "interrupted" in rest
    assert not list(tmp_path.glob("*.json"))


def test_writing_is_atomic(tmp_path):
    path = tmp_path / "result.json"
    write_json(path, {"a": np.arange(2), "b": np.float64(1.5)})
    assert json.loads(path.read_text()) == {"a": [0, 1], "b": 1.5}
    with pytest.raises(ValueError, match="Out of range"):
        write_json(path, {"a": float("nan")})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": [0, 1], "b": 1.5}
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.long
def test_a_picture_of_one_panel(tiny, tmp_path):
    result = panel.run_panel(FIGURE2, dataclasses.replace(tiny, num_noise_draws=5))
    path = panel.write_panel(result, str(tmp_path))
    assert path.name == "figure2_D2.json"
    picture = plot.draw(FIGURE2, [path], tmp_path / "panel.png")
    assert picture.stat().st_size > 5000
