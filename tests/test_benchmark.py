import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from experiments import benchmark, common, plots

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIMING = {"seconds", "median_seconds", "pairs_per_second", "compile_seconds", "max_error", "variant"}


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "_PAUSE", 0)
    return benchmark.BenchmarkConfig(
        dims=(2,),
        dtypes=("float32",),
        num_rows=700,
        num_points=130,
        num_features=20,
        num_timings=2,
        output_dir=str(tmp_path),
    )


def _numpy_peer(points, gamma):
    def sums(block):
        squared = np.square(points[:, None].astype(np.float64) - block[None].astype(np.float64)).sum(axis=2)
        return np.exp(-gamma * squared).sum(axis=1)

    return {"direct": sums, "direct again": sums}


def _absent_peer(points, gamma):
    raise ImportError("No module named 'nothing'")


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.setattr(benchmark, "PEERS", {"numpy": _numpy_peer, "nothing": _absent_peer})


def _command(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "experiments.benchmark", *words],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_a_tiny_run_has_it_all(tiny, peers, tmp_path):
    result = benchmark.run(tiny)
    path = tmp_path / "benchmark.json"
    common.write_json(path, result)
    result = json.loads(path.read_text())
    assert set(result) == {
        *("experiment", "config", "environment", "wall_seconds", "stage_seconds", "peak_memory_bytes", "records")
    }
    assert {"device", "device_kind", "processor", "usable_cores", "load_average"} <= set(result["environment"])
    assert result["peak_memory_bytes"] > 10**7
    assert [record["case"] for record in result["records"]] == list(benchmark.CASES)
    for record in result["records"]:
        assert set(record) >= TIMING | {"sizes", "dtype", "pairs", "peers", "ceiling", "targets", "peak_memory_bytes"}
        assert len(record["seconds"]) == 2
        assert record["median_seconds"] == pytest.approx(sum(record["seconds"]) / 2)
        assert (record["pairs_per_second"] is None) == (record["pairs"] is None)
        assert record["targets"] == {}  # they are for the full size
    means, basis, fourier, sincos = result["records"][:4]
    assert means["pairs_per_second"] == pytest.approx(700 * 130 / means["median_seconds"])
    assert means["max_error"] <= means["tolerance"]
    numpy, nothing = means["peers"]["numpy"], means["peers"]["nothing"]
    assert set(numpy) == TIMING | {"ratio"}
    assert numpy["ratio"] == pytest.approx(numpy["median_seconds"] / means["median_seconds"])
    assert numpy["variant"].startswith("direct")
    assert nothing == {"seconds": None, "ratio": None, "reason": "No module named 'nothing'"}
    assert means["ceiling"]["share"] == pytest.approx(means["pairs_per_second"] / means["ceiling"]["pairs_per_second"])
    assert basis["peers"] == {}
    assert fourier["peers"]["jax.numpy"]["ratio"] > 0
    assert sincos["max_error"] <= 2e-7
    text = benchmark.table(result)
    assert "x numpy (direct" in text
    assert "nothing: No module named 'nothing'" in text
    assert "of the exp ceiling" in text
    assert plots.draw_benchmark(path, tmp_path / "a.png", tmp_path / "a.pdf").stat().st_size > 10_000
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("name", ["scikit-learn", "pytorch"])
def test_the_peers_compute_the_same(name, rng):
    points, rows = rng.normal(size=(7, 3)), rng.normal(size=(40, 3))
    try:
        ways = benchmark.PEERS[name](points, 0.3)
    except ImportError:
        pytest.skip(f"{name} is not installed")
    expected = _numpy_peer(points, 0.3)["direct"](rows)
    for way in ways.values():
        np.testing.assert_allclose(np.asarray(way(rows)), expected, rtol=1e-12)


@pytest.mark.parametrize("fault", [lambda sums: sums * (1 + 1e-3), lambda sums: sums * np.nan])
def test_a_peer_with_wrong_results_is_refused(fault, tiny, monkeypatch):
    def wrong(points, gamma):
        right = _numpy_peer(points, gamma)["direct"]
        return {"wrong": lambda block: fault(right(block))}

    monkeypatch.setattr(benchmark, "PEERS", {"numpy": wrong})
    with pytest.raises(benchmark.WrongResultError, match=r"numpy is .* off float64 .* times are not compared"):
        benchmark.run(dataclasses.replace(tiny, cases=("kernel_means",)))


def test_ours_is_checked_too(tiny, peers, monkeypatch):
    monkeypatch.setattr(benchmark, "kernel_mean", lambda kernel, points, rows: np.zeros(len(points)))
    with pytest.raises(benchmark.WrongResultError, match="ours is"):
        benchmark.run(dataclasses.replace(tiny, cases=("kernel_means",)))


def test_what_is_long_is_timed_less_often(monkeypatch):
    monkeypatch.setattr(benchmark, "_PAUSE", 0)
    monkeypatch.setattr(benchmark, "_LONG_SECONDS", 0)
    task = benchmark.Task("basis", {"M": 1}, "float64", lambda: np.zeros(1), units=4)
    assert len(benchmark.measure(task, 7, lambda done, total: None)["seconds"]) == 3


def test_the_ceiling_does_what_it_says():
    contender, exact = benchmark.exp_ceiling("float32", 2**24)
    assert exact == pytest.approx(2**24, rel=0.1)
    contender.run()
    values = np.linspace(0, 1, 8, dtype=np.float32)
    expected = np.exp(-np.exp(-np.exp(-np.exp(-values))))
    np.testing.assert_allclose(benchmark._exp_passes(values, num_passes=2, depth=2), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cases": ()}, "--cases must be among kernel_means,"),
        ({"cases": ("kernel_mean",)}, "--cases must be among kernel_means,.* got 'kernel_mean'"),
        ({"dtypes": ("float16",)}, "--dtypes must be among float32,float64, got 'float16'"),
        ({"dims": (0,)}, "--dims must be positive"),
        ({"dims": ()}, "--dims must be positive"),
        ({"num_rows": 0}, "--num_rows must be at least 1"),
        ({"num_points": 701}, "--num_points=701 is more than --num_rows=700"),
        ({"num_features": 7}, "--num_features must be even"),
        ({"num_timings": 0}, "--num_timings must be at least 1"),
        ({"output_dir": "/proc/nope"}, "--output_dir=/proc/nope: cannot write there"),
    ],
)
def test_bad_configurations_are_refused_before_work(changes, message, tiny):
    with pytest.raises(common.InputError, match=message) as caught:
        benchmark.run(dataclasses.replace(tiny, **changes))
    assert "\n" not in str(caught.value)


def test_the_command_line(tmp_path):
    """On two devices: rows and ceiling are spread over both. The result shows the same again."""
    words = ["--cases=kernel_means", "--dims=3", "--dtypes=float64", "--num_rows=7000", "--num_points=400"]
    words += ["--quick", "--num_timings=1", f"--output_dir={tmp_path}"]
    first = _command(*words, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    assert first.returncode == 0, first.stderr
    result = json.loads((tmp_path / "benchmark.json").read_text())
    assert result["records"][0]["sizes"] == {"N": 700, "M": 40, "D": 3}
    assert result["environment"]["device"].endswith("x 2")
    assert (tmp_path / "benchmark.png").stat().st_size > 10_000
    shown = benchmark.table(benchmark.load(f"{tmp_path}/benchmark.json"))
    assert first.stdout == f"{shown}\nwrote {tmp_path}/benchmark.json and {tmp_path}/benchmark.png\n"


def test_errors_are_one_line_and_exit_status_2():
    run = _command("--dims=a")
    assert run.returncode == 2
    assert run.stderr.strip().startswith("error: --dims must be whole numbers")
    assert len(run.stderr.strip().splitlines()) == 1


def test_only_a_result_of_the_benchmark_is_shown_again(tmp_path):
    (tmp_path / "list.json").write_text("[1]")
    for path in (tmp_path / "list.json", ROOT / "figures" / "figure1_D2.json", tmp_path / "missing.json"):
        with pytest.raises(common.InputError, match=f"--input={path}: "):
            benchmark.load(str(path))


def test_help_lists_every_flag():
    text = _command("--help").stdout
    for name in [*(field.name for field in dataclasses.fields(benchmark.BenchmarkConfig)), "quick", "input"]:
        assert f"--{name}:" in text or f"]{name}:" in text, name
