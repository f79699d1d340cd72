"""Regenerates every committed figure, and prints the achieved distances beside the paper's.

python -m experiments.figures            # full size, into figures/
python -m experiments.figures --quick    # a tenth of the size, into results/quick/
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import resource
import sys
import time
from typing import Any

import numpy as np
from absl import flags

from experiments import common, curves, figure1, figure2, plots
from experiments.published import published_panel
from kme_jax.nonprivate import Reference

_EXPERIMENTS = {"figure1": figure1.run, "figure2": figure2.run}
_DIMS = (2, 5)
_BEST_OF = {
    "algorithm1": "algorithm 1",
    "algorithm2": "algorithm 2, greedy",
    "algorithm2_joint": "algorithm 2, joint",
    "improved": "improved",
}
_TABLE_POINTS = (10, 100, 1000, 10_000)


def run(output_dir: str, *, quick: bool = False) -> dict[str, list[pathlib.Path]]:
    """Computes and draws all panels.

    Args:
      output_dir: where JSON and pictures go.
      quick: N, M, J and the number of noise draws a tenth of the published size, one repeat, and optimisers
        cut short.

    Returns:
      {figure: paths of its panels' JSON}.
    """
    folder = common.check_output_dir(output_dir)
    config = common.MixtureConfig(output_dir=output_dir)
    if quick:
        small = {"num_rows": 10_000, "max_points": 1000, "num_noise_draws": 100, "num_repeats": 1, "num_features": 1000}
        small |= {"joint_steps": 30, "improved_trajectories": 1, "improved_sizes": (100,), "improved_draws": 1}
        config = dataclasses.replace(config, **small)
    panels = [(name, dim) for name in _EXPERIMENTS for dim in _DIMS]
    paths: dict[str, list[pathlib.Path]] = {name: [] for name in _EXPERIMENTS}
    references: dict[int, Reference] = {}  # both figures of one D have the same rows and kernel
    for i, (name, dim) in enumerate(panels):
        print(f"panel {i + 1} of {len(panels)}: {name}, D = {dim}", file=sys.stderr)
        panel = dataclasses.replace(config, dim=dim)
        if dim not in references:
            panel.validate()
            rows, stages = common.load_rows(panel), common.Stages(f"rows of both figures, D = {dim}")
            references[dim] = curves.private_reference(panel, rows, stages)
        result = _EXPERIMENTS[name](panel, references[dim])
        paths[name].append(curves.write_panel(result, output_dir))
    for name, inputs in paths.items():
        plots.draw_mixture_figure(inputs, folder / f"{name}.png", folder / f"{name}.pdf")
    return paths


def table(results: list[dict[str, Any]]) -> str:
    """Achieved root-mean-square Δ beside the published one (a single draw), as text."""
    lines = [
        f"{'figure':<8} {'D':>2} {'curve':<24} {'M':>6} {'F':>6} {'ours':>10} {'paper':>10} {'ours/paper':>10}",
    ]
    for result in results:
        published = published_panel(result)
        ours = {("projection distance", None): result["curves"]["projection"]}
        ours |= {(f"algorithm 1, ε = {e}", e): curve["rms"] for e, curve in result["curves"]["algorithm1"].items()}
        for (label, epsilon), curve in ours.items():
            for num_points in _TABLE_POINTS:
                # The published grid skips most powers of ten: the nearest M on it stands for each.
                i = int(np.argmin(np.abs(np.log(np.asarray(result["num_points"]) / num_points))))
                grid_points = result["num_points"][i]
                paper = None
                if published and grid_points in published["num_points"]:
                    source = published["projection"] if epsilon is None else published["algorithm1"].get(epsilon)
                    paper = source[published["num_points"].index(grid_points)] if source else None
                beside = f"{paper:>10.3g} {curve[i] / paper:>10.3f}" if paper else f"{'-':>10} {'-':>10}"
                lines.append(
                    f"{result['experiment']:<8} {result['config']['dim']:>2} {label:<24} {grid_points:>6} "
                    f"{result['rank'][i]:>6} {curve[i]:>10.3g} {beside}"
                )
                if grid_points == result["num_points"][-1]:
                    break
    return "\n".join(lines)


def best_table(results: list[dict[str, Any]]) -> str:
    """The least Δ over M of every curve of figure 2, beside the published one (a single draw), as text.

    For algorithm 2 the median over repeats of each repeat's least, for algorithm 1 that of the root mean square. For
    `improved`, in both figures, Δ at its largest M up to 1000, beside the least published of all M and algorithms.
    """
    header = f"{'figure':<8} {'D':>2} {'ε':>6} {'best Δ over M of':<28} {'M up to':>8} {'ours':>10} {'paper':>10}"
    lines = [f"{header} {'ours/paper':>10}"]
    for result in results:
        curves_, published = result["curves"], published_panel(result) or {}
        for epsilon in curves_["algorithm1"]:
            for name, label in _BEST_OF.items():
                if name not in curves_ or (name == "algorithm1" and result["experiment"] == "figure1"):
                    continue
                curve = curves_[name][epsilon]
                largest = (curves_.get(f"{name}_num_points") or result["num_points"])[-1]
                ours = float(np.median(curve.get("best_of_each_repeat", min(curve["rms"]))))
                if name == "improved":
                    largest, ours = max(
                        (m, rms)
                        for m, rms in zip(curves_["improved_num_points"], curve["rms"], strict=True)
                        if m <= 1000
                    )
                # `improved` has no curve in the paper: the best of those that are there.
                theirs = [name] if name != "improved" else ["algorithm1", "algorithm2"]
                values = [min(published[n][epsilon]) for n in theirs if epsilon in published.get(n, {})]
                paper = min(values) if values else None
                beside = f"{paper:>10.3g} {ours / paper:>10.3f}" if paper else f"{'-':>10} {'-':>10}"
                lines.append(
                    f"{result['experiment']:<8} {result['config']['dim']:>2} {epsilon:>6} {label:<28} {largest:>8} "
                    f"{ours:>10.3g} {beside}"
                )
    return "\n".join(lines)


def summary(results: list[dict[str, Any]]) -> str:
    """How well the results agree with theory and with the published numbers, pooled over panels, as text."""
    rms_error, check_error, projection_error, inside = [], [], [], []
    for result in results:
        curves_, published = result["curves"], published_panel(result)
        for epsilon, curve in curves_["algorithm1"].items():
            rms_error.append(np.abs(np.divide(curve["rms"], curves_["algorithm1_expected_rms"][epsilon]) - 1).max())
        check_error += [abs(check["by_coordinates"] - check["exact"]) for check in result["checks"]]
        if not published:
            continue
        common_points = [m for m in result["num_points"] if m in published["num_points"]]
        ours = [result["num_points"].index(m) for m in common_points]
        theirs = [published["num_points"].index(m) for m in common_points]
        projection = np.asarray(published["projection"])[theirs]
        difference = np.abs(np.asarray(curves_["projection"])[ours] - projection)
        projection_error.append(difference[projection > 1e-3].max())
        for epsilon in set(curves_["algorithm1"]) & set(published["algorithm1"]):
            curve, draw = curves_["algorithm1"][epsilon], np.asarray(published["algorithm1"][epsilon])[theirs]
            low, high = np.asarray(curve["low"])[ours], np.asarray(curve["high"])[ours]
            inside.append((low <= draw) & (draw <= high))
    lines = [
        f"rms Δ of algorithm 1 / √(projection² + Fσ²): within {max(rms_error):.2%}",
        f"Δ by coordinates and recomputed against all rows: within {max(check_error):.1e}",
    ]
    if projection_error:
        pooled = np.concatenate(inside)
        lines += [
            f"projection distance and the published one, where > 1e-3: within {max(projection_error):.1e}",
            f"published points inside the 0.5–99.5 % band: {pooled.mean():.1%} of {pooled.size}",
        ]
    return "\n".join(lines)


def _define_flags() -> None:
    flags.DEFINE_bool("quick", False, "A tenth of the published size, in a minute or two, never into figures/.")
    flags.DEFINE_string("output_dir", None, "Where to write. Default: figures/, or results/quick/ with --quick.")


def _main() -> None:
    quick = flags.FLAGS.quick
    default = common.REPOSITORY / ("results/quick" if quick else "figures")
    output_dir = pathlib.Path(flags.FLAGS.output_dir or default)
    if quick and output_dir.resolve() == (common.REPOSITORY / "figures").resolve():
        raise common.InputError("--quick never writes into figures/: give another --output_dir")
    started = time.perf_counter()
    with common.compile_seconds() as compiling:
        paths = run(str(output_dir), quick=quick)
    seconds = time.perf_counter() - started
    results = [json.loads(path.read_text()) for panel_paths in paths.values() for path in panel_paths]
    print(table(results), best_table(results), sep="\n\n")
    print(summary(results), sep="\n")
    print(f"wrote figure1 and figure2 (.png, .pdf) and their JSON to {output_dir}/", end=" ")
    print(
        f"in {seconds:.0f} s: {sum(compiling):.0f} s of compilation, {seconds - sum(compiling):.0f} s of the rest;",
        end=" ",
    )
    print(f"at most {_peak_memory() / 2**30:.1f} GiB of host memory")


def _peak_memory() -> int:
    """The most memory this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    common.run_main(_define_flags, _main)
