"""The section on privacy: the statement in words."""

from __future__ import annotations

import math

from kme_jax.privacy.statement import describe_total, has_noisy_count, is_for_persons, rounded_up
from kme_jax.table.report.data import ReportData, Section
from kme_jax.table.report.words import Power, noise_range, percent, power
from kme_jax.table.written import note_on_persons


def section(data: ReportData) -> Section:
    """The privacy statement in words."""
    statement = data.statement
    epsilon, delta, total = statement["epsilon"], statement["delta"], statement["total"]
    measurements = statement["measurements"]
    spent = [(m["sensitivity"] / m["scale"]) ** 2 for m in measurements]
    sources = dict.fromkeys(
        f"{'discrete ' * m['discrete']}{m['noise'].capitalize()}, {m['source']}" for m in measurements
    )
    values = {
        "private": statement["private"],
        "filled_from_data": data.schema.filled_from_data,
        "total": {"releases": total["releases"], "budget": describe_total(total)}
        if total and total["releases"] > 1
        else None,
        "epsilon": f"{epsilon:g}",
        "delta": power(delta),
        "one_in": _one_in(delta) if delta else None,
        "factor": _factor(epsilon),
        "best_guess": _best_guess(epsilon, delta),
        "unit": statement["unit"],
        "relation": statement["relation"],
        "is_add_remove": has_noisy_count(statement),
        "max_rows": statement["max_rows"] if is_for_persons(statement) else None,
        "person": statement.get("person"),
        "note_on_persons": note_on_persons(data.schema.written_columns, statement.get("person")),
        "not_covered": statement["not_covered"],
        "groups": [
            {
                "size": group.get("rows", group.get("persons")),
                "epsilon": rounded_up(group["epsilon"]),
                "factor": _factor(group["epsilon"]),
                "best_guess": _best_guess(group["epsilon"], delta),
            }
            for group in statement["groups"]
        ],
        "noise": "; ".join(sources),
        "measurements": [
            {
                "name": m["name"].capitalize(),
                "numbers": m["feature_map"]["num_features"],
                "noise": noise_range(m["cell_noise"]),
                "share": percent(square / sum(spent)),
            }
            for m, square in zip(measurements, spent, strict=True)
        ],
    }
    return Section("privacy", "Privacy", values)


def _best_guess(epsilon: float, delta: float) -> str:
    """The largest success rate in telling two equally likely rows apart: (1 + TV) / 2, with TV bounded by (ε, δ)."""
    share = (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon))
    if share >= 0.999:
        return "almost 100\N{NO-BREAK SPACE}%"
    return f"{math.ceil(1000 * share) / 10:.1f}\N{NO-BREAK SPACE}%"


def _factor(epsilon: float) -> Power:
    """e^ε."""
    return power(math.exp(min(epsilon, 700)), 3)


def _one_in(delta: float) -> Power:
    """1/δ."""
    return Power(f"{round(1 / delta):,}", "") if delta > 1e-15 else power(1 / delta, 4)
