import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from experiments.benchmark import cases, machine, plot, report
from experiments.benchmark.config import CASES, BenchmarkCommand, BenchmarkConfig
from experiments.benchmark.machine import exp_ceiling, exp_passes
from experiments.benchmark.peers import PEERS, Peer
from experiments.benchmark.run import run
from experiments.benchmark.targets import targets
from experiments.benchmark.task import Task
from experiments.benchmark.timing import Rules, WrongResultError, measure
from experiments.common.errors import InputError
from experiments.common.results import write_json
from kme_jax.algorithms import three_steps

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIMING = {"seconds", "median_seconds", "pairs_per_second", "num_rows", "max_error", "variant"}
RELEASES = ("improved", "algorithm1", "algorithm2", "generator")
FIRST = {"first_seconds", "compile_seconds", "cached_first_seconds", "cached_compile_seconds"}


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    posterior = functools.partial(three_steps.posterior_mean, num_atoms=10, num_trajectories=2, num_leaps=5)
    monkeypatch.setattr(three_steps, "posterior_mean", posterior)
    return BenchmarkConfig(
        cases=tuple(case for case in CASES if case not in RELEASES),
        dims=(2,),
        dtypes=("float32",),
        num_rows=700,
        num_points=130,
        num_features=20,
        num_timings=2,
        peer_seconds=10,
        output_dir=str(tmp_path),
    )


def _numpy_peer(points, gamma):
    def sums(block):
        squared = np.square(points[:, None].astype(np.float64) - block[None].astype(np.float64)).sum(axis=2)
        return np.exp(-gamma * squared).sum(axis=1)

    return Peer({"direct": sums, "direct again": sums})


def _absent_peer(points, gamma):
    raise ImportError("No module named 'nothing'")


FEW_PEERS = {"numpy": _numpy_peer, "nothing": _absent_peer}
RULES = Rules(pause=0)


def _run(config, keep=lambda result: None, *, rules=RULES, **parts):
    """A run without pauses, and with other parts than by default."""
    return run(config, keep, parts=cases.Parts(**({"generator_steps": 3} | parts)), rules=rules)


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


@pytest.mark.long
def test_a_tiny_run_has_it_all(tiny, tmp_path):
    before = {name: getattr(jax.config, name) for name in ("jax_compilation_cache_dir", "jax_logging_level")}
    kept = []
    with jax.numpy_rank_promotion("allow"):  # as it runs: steps of reduced sets otherwise have threads of their own
        result = _run(tiny, lambda result: kept.append(len(result["records"])), peers=FEW_PEERS)
    assert kept == list(range(1, len(result["records"]) + 1))
    assert {name: getattr(jax.config, name) for name in before} == before
    path = tmp_path / "benchmark.json"
    write_json(path, result)
    result = json.loads(path.read_text())
    assert set(result) == {
        *("experiment", "config", "environment", "wall_seconds", "stage_seconds", "peak_memory_bytes", "records"),
        *("memory_bytes_per_second", "skipped"),
    }
    assert {"device", "device_kind", "processor", "usable_cores", "load_average"} <= set(result["environment"])
    assert result["peak_memory_bytes"] > 10**7
    assert result["memory_bytes_per_second"] > 10**6
    records = [record for record in result["records"] if not record["rows_on_device"]]
    assert [record["case"] for record in records] == list(tiny.cases)
    for record in result["records"]:
        assert set(record) >= TIMING | FIRST | {"sizes", "dtype", "pairs", "peers", "ceiling", "targets"}
        assert len(record["seconds"]) == 2
        assert record["median_seconds"] == pytest.approx(sum(record["seconds"]) / 2)
        assert (record["pairs_per_second"] is None) == (record["pairs"] is None)
        assert record["targets"] == {}  # they are for the full size
        assert record["first_seconds"] >= record["compile_seconds"] > 0
        assert record["cached_first_seconds"] >= record["cached_compile_seconds"] > 0
    means, double, _, fourier, sincos = records[:5]
    assert means["pairs_per_second"] == pytest.approx(700 * 130 / means["median_seconds"])
    assert means["max_error"] <= means["tolerance"]
    assert means["compile_seconds"] > means["cached_compile_seconds"]
    numpy, nothing = means["peers"]["numpy"], means["peers"]["nothing"]
    assert set(numpy) == TIMING | {"ratio"}
    assert numpy["ratio"] == pytest.approx(numpy["median_seconds"] / means["median_seconds"])
    assert numpy["variant"].startswith("direct")
    assert numpy["num_rows"] is None
    assert nothing == {"seconds": None, "ratio": None, "reason": "No module named 'nothing'"}
    assert means["ceiling"]["share"] == pytest.approx(means["pairs_per_second"] / means["ceiling"]["pairs_per_second"])
    assert double["max_error"] < 1e-11
    assert fourier["peers"]["jax.numpy"]["ratio"] > 0
    assert sincos["max_error"] <= 2e-7
    text = report.table(result)
    assert "x numpy (direct" in text
    assert "nothing: No module named 'nothing'" in text
    assert "of the exp ceiling" in text
    assert "with the compile cache" in text
    assert plot.draw([path], tmp_path / "a.png", tmp_path / "a.pdf").stat().st_size > 10_000
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.long
def test_releases_are_timed(tiny):
    """First calls are left out: they take long."""
    rules = Rules(pause=0, first_calls=lambda run: (run(), dict.fromkeys(FIRST, 0.0)))
    result = _run(dataclasses.replace(tiny, cases=RELEASES, num_timings=1), rules=rules)
    assert [record["case"] for record in result["records"]] == list(RELEASES)
    assert all(record["median_seconds"] > 0 for record in result["records"])


@pytest.mark.parametrize("name", PEERS)
def test_the_peers_compute_the_same(name, rng):
    points, rows = rng.normal(size=(7, 3)), rng.normal(size=(40, 3))
    try:
        peer = PEERS[name](points, 0.3)
    except (ImportError, NotImplementedError) as error:
        pytest.skip(f"{name}: {error}")
    expected = _numpy_peer(points, 0.3).ways["direct"](rows)
    for way in peer.ways.values():
        np.testing.assert_allclose(peer.gather(way(peer.place(rows))), expected, rtol=1e-12)


@pytest.mark.long
def test_a_slow_peer_gets_fewer_rows(tiny):
    """Its result is checked against that for these rows, and rates are compared."""
    right = _numpy_peer

    def slow(points, gamma):
        direct = right(points, gamma).ways["direct"]

        def sums(block):
            time.sleep(1e-3 * len(block))
            return direct(block)

        return Peer({"slow": sums})

    config = dataclasses.replace(tiny, cases=("kernel_means",), peer_seconds=1)
    result = _run(config, peers={"numpy": slow}, first_rows=10)
    record = result["records"][0]
    peer = record["peers"]["numpy"]
    assert 10 <= peer["num_rows"] < 350  # 1 ms a row, for three runs, in half a second
    assert max(peer["seconds"]) < 0.5
    assert peer["pairs_per_second"] == pytest.approx(peer["num_rows"] * 130 / peer["median_seconds"])
    assert peer["ratio"] == pytest.approx(record["pairs_per_second"] / peer["pairs_per_second"])
    assert f"{peer['num_rows']} rows)" in report.table(result)


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0.3, 30])
def test_a_peer_cannot_hang_the_run(seconds, tiny):
    def stuck(points, gamma):
        return Peer({"stuck": lambda block: time.sleep(seconds) or np.zeros(len(points))})

    started = time.perf_counter()
    result = _run(dataclasses.replace(tiny, cases=("kernel_means",), peer_seconds=1), peers={"numpy": stuck})
    assert time.perf_counter() - started < 25
    for record in result["records"]:
        assert record["peers"]["numpy"] == {"seconds": None, "ratio": None, "reason": "over the limit of 1 s"}


@pytest.mark.long
def test_a_peer_that_fails_is_named(tiny):
    def broken(points, gamma):
        return Peer({"broken": lambda block: 1 / 0})

    result = _run(dataclasses.replace(tiny, cases=("kernel_means",)), peers={"numpy": broken})
    assert result["records"][0]["peers"]["numpy"]["reason"] == "ZeroDivisionError: division by zero"


@pytest.mark.long
def test_no_task_is_begun_when_time_is_over(tiny):
    config = dataclasses.replace(tiny, cases=("kernel_means", "sincos"), max_seconds=1, dims=(2, 3))
    result = _run(config, peers=FEW_PEERS)
    done = [record["name"] for record in result["records"]]
    assert done
    assert done[0].startswith("kernel_means, N = 700, M = 130, D = 2")
    assert result["skipped"][-1] == "sincos, size = 262144, float32"
    assert "not begun, for want of time: sincos" in report.table(result)


@pytest.mark.long
@pytest.mark.parametrize("fault", [lambda sums: sums * (1 + 1e-3), lambda sums: sums * np.nan])
def test_a_peer_with_wrong_results_is_refused(fault, tiny):
    def wrong(points, gamma):
        right = _numpy_peer(points, gamma).ways["direct"]
        return Peer({"wrong": lambda block: fault(right(block))})

    with pytest.raises(WrongResultError, match=r"numpy is .* off float64 .* times are not compared"):
        _run(dataclasses.replace(tiny, cases=("kernel_means",)), peers={"numpy": wrong})


def test_ours_is_checked_too(tiny):
    def wrong(kernel, points, rows):
        return np.zeros(len(points))

    with pytest.raises(WrongResultError, match="ours is"):
        _run(dataclasses.replace(tiny, cases=("kernel_means",)), peers=FEW_PEERS, kernel_mean=wrong)


def test_what_is_long_is_timed_less_often():
    task = Task("basis", {"M": 1}, "float64", lambda: np.zeros(1), units=4)
    assert len(measure(task, 7, lambda done, total: None, rules=Rules(pause=0, long_seconds=0))["seconds"]) == 3


@pytest.mark.parametrize(("seconds", "runs"), [(0.005, 4 + 8), (0.1, 1 + 1)])
def test_runs_in_a_row(seconds, runs, monkeypatch):
    """On an accelerator, by a clock that only a run moves: some runs that do not count, and then the mean of others."""
    clock = [0.0]

    def run():
        clock.append(clock[-1] + seconds)

    monkeypatch.setattr(machine.time, "perf_counter", lambda: clock[-1])
    assert machine.seconds_in_a_row(run, warm_up=0.0199, in_a_row=0.0399) == pytest.approx(seconds)
    assert len(clock) == 1 + runs


def test_a_record_says_how_it_was_timed():
    task = Task("basis", {"M": 1}, "float64", lambda: np.zeros(1))
    for in_a_row in (False, True):
        rules = Rules(pause=0, in_a_row=in_a_row, first_calls=lambda run: (run(), dict.fromkeys(FIRST, 0.0)))
        assert measure(task, 1, lambda done, total: None, rules=rules)["in_a_row"] is in_a_row


@pytest.mark.long
def test_the_ceiling_does_what_it_says():
    contender, exact = exp_ceiling("float32", 2**24)
    assert exact == pytest.approx(2**24, rel=0.1)
    contender.run()
    values = np.linspace(0, 1, 8, dtype=np.float32)
    expected = np.exp(-np.exp(-np.exp(-np.exp(-values))))
    np.testing.assert_allclose(exp_passes(values, num_passes=2, depth=2), expected, rtol=1e-6)


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
        ({"peer_seconds": 0}, "--peer_seconds must be at least 1"),
        ({"max_seconds": -1}, "--max_seconds must be at least 0"),
        ({"output_dir": "/proc/nope"}, "--output_dir=/proc/nope: cannot write there"),
    ],
)
def test_bad_configurations_are_refused_before_work(changes, message, tiny):
    with pytest.raises(InputError, match=message) as caught:
        run(dataclasses.replace(tiny, **changes))
    assert "\n" not in str(caught.value)


@pytest.mark.long
def test_the_command_line(tmp_path):
    """On two CPUs, whatever else there is: rows and ceiling are spread over both. The result shows the same again."""
    words = ["--cases=kernel_means", "--dims=3", "--dtypes=float64", "--num_rows=7000", "--num_points=400"]
    words += ["--quick", "--num_timings=1", "--device=cpu", f"--output_dir={tmp_path}"]
    first = _command(*words, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    assert first.returncode == 0, first.stderr
    result = json.loads((tmp_path / "benchmark_cpu.json").read_text())
    assert [record["sizes"] for record in result["records"]] == [{"N": 700, "M": 40, "D": 3}]
    assert result["environment"]["device"].endswith("x 2")
    assert (tmp_path / "benchmark_cpu.png").stat().st_size > 10_000
    path = tmp_path / "benchmark_cpu.json"
    shown = report.table(report.load(str(path)))
    assert first.stdout == f"{shown}\nwrote {path} and {tmp_path}/benchmark_cpu.png\n"
    again = _command(f"--input={path}", f"--output_dir={tmp_path / 'again'}")
    assert again.stdout.startswith(shown)
    assert json.loads((tmp_path / "again" / "benchmark_cpu.json").read_text()) == result
    assert (tmp_path / "again" / "benchmark.png").exists()


@pytest.mark.long
def test_a_device_that_is_not_there_is_one_line():
    other = "gpu" if jax.default_backend() == "cpu" else "tpu"
    run = _command(f"--device={other}", JAX_PLATFORMS="")
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1].startswith(f"error: --device={other}: ")


@pytest.fixture
def parts(tiny):
    """Two parts of one result, and that of another device."""
    first = _run(dataclasses.replace(tiny, cases=("kernel_means",)), peers=FEW_PEERS)
    second = _run(dataclasses.replace(tiny, cases=("sincos",)))
    other = json.loads(json.dumps(first))
    other["environment"] |= {"device": "gpu: NVIDIA H100 80GB HBM3 x 1", "device_kind": "NVIDIA H100 80GB HBM3"}
    for record in other["records"]:
        record["rows_on_device"] = True
    return first, second, other


@pytest.mark.long
def test_parts_are_put_together(parts, tmp_path):
    first, second, other = parts
    merged = report.merge([first, other, second, first])
    assert len(merged) == 2
    assert [record["case"] for record in merged[0]["records"]] == ["kernel_means", "sincos"]
    assert merged[0]["config"]["cases"] == ["kernel_means", "sincos"]
    assert [report.file_name(result) for result in merged[1:]] == ["benchmark_nvidia_h100_80gb_hbm3.json"]
    paths = [tmp_path / f"{i}.json" for i in range(2)]
    for path, result in zip(paths, merged, strict=True):
        write_json(path, result)
    assert plot.draw(paths, tmp_path / "both.png").stat().st_size > 10_000
    changed = second | {"environment": second["environment"] | {"git_commit": "another"}}
    with pytest.raises(InputError, match=r"differ in git_commit: .* and another"):
        report.merge([first, changed])


def test_targets_are_those_of_the_device():
    task = Task(
        "kernel_means", {"N": 10**6, "M": 10**4, "D": 2}, "float32", lambda: None, pairs=10**10, rows_on_device=True
    )
    assert targets(task, "NVIDIA H100 80GB HBM3") == {"pairs_per_second": 2e12, "pytorch": 10.0}
    assert targets(dataclasses.replace(task, rows_on_device=False), "NVIDIA H100 80GB HBM3") == {}
    assert targets(task, "cpu") == {}
    assert targets(task, "") == {}
    task.sizes["N"] = 10**5
    assert set(targets(task, "cpu")) == {"scikit-learn", "ceiling"}


def test_every_case_has_its_name_in_the_configuration():
    assert tuple(cases.CASES) == CASES


@pytest.mark.long
def test_errors_are_one_line_and_exit_status_2():
    run = _command("--dims=a")
    assert run.returncode == 2
    assert run.stderr.strip().startswith("error: --dims must be whole numbers")
    assert len(run.stderr.strip().splitlines()) == 1


def test_only_a_result_of_the_benchmark_is_shown_again(tmp_path):
    (tmp_path / "list.json").write_text("[1]")
    for path in (tmp_path / "list.json", ROOT / "figures" / "figure1_D2.json", tmp_path / "missing.json"):
        with pytest.raises(InputError, match=f"--input={path}: "):
            report.load(str(path))


@pytest.mark.long
def test_help_lists_every_flag():
    text = _command("--help").stdout
    for name in [field.name for kind in (BenchmarkConfig, BenchmarkCommand) for field in dataclasses.fields(kind)]:
        assert f"--{name}:" in text or f"]{name}:" in text, name
