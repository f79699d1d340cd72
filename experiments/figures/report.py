"""The achieved distances of figures 1 and 2 beside the published ones, as text."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.common.published import published_panel
from experiments.figures.catalogue import FIGURES

_BEST_OF = {
    "algorithm1": "algorithm 1",
    "algorithm2": "algorithm 2, greedy",
    "algorithm2_joint": "algorithm 2, joint",
    "improved": "improved",
}
_TABLE_POINTS = (10, 100, 1000, 10_000)


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
        curves, published = result["curves"], published_panel(result) or {}
        for epsilon in curves["algorithm1"]:
            for name, label in _BEST_OF.items():
                if name not in curves or (name == "algorithm1" and FIGURES[result["experiment"]].points_are_rows):
                    continue
                curve = curves[name][epsilon]
                largest = (curves.get(f"{name}_num_points") or result["num_points"])[-1]
                ours = float(np.median(curve.get("best_of_each_repeat", min(curve["rms"]))))
                if name == "improved":
                    largest, ours = max(
                        (m, rms)
                        for m, rms in zip(curves["improved_num_points"], curve["rms"], strict=True)
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
        curves, published = result["curves"], published_panel(result)
        for epsilon, curve in curves["algorithm1"].items():
            rms_error.append(np.abs(np.divide(curve["rms"], curves["algorithm1_expected_rms"][epsilon]) - 1).max())
        check_error += [abs(check["by_coordinates"] - check["exact"]) for check in result["checks"]]
        if not published:
            continue
        common_points = [m for m in result["num_points"] if m in published["num_points"]]
        ours = [result["num_points"].index(m) for m in common_points]
        theirs = [published["num_points"].index(m) for m in common_points]
        projection = np.asarray(published["projection"])[theirs]
        difference = np.abs(np.asarray(curves["projection"])[ours] - projection)
        projection_error.append(difference[projection > 1e-3].max())
        for epsilon in set(curves["algorithm1"]) & set(published["algorithm1"]):
            curve, draw = curves["algorithm1"][epsilon], np.asarray(published["algorithm1"][epsilon])[theirs]
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
