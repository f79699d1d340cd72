"""The section on privacy: the statement in words."""

from __future__ import annotations

import math
from typing import Any

from kme_jax.privacy.statement import describe_total, rounded_up
from kme_jax.table.report.data import ReportData, Section
from kme_jax.table.report.drawing import table_html
from kme_jax.table.report.words import escaped, noise_range, percent, power


def section(data: ReportData) -> Section:
    """The privacy statement in words."""
    return Section("privacy", "Privacy", _privacy(data.statement, data.schema.filled_from_data))


def _privacy(statement: dict[str, Any], filled_from_data: bool) -> str:
    epsilon, delta, total = statement["epsilon"], statement["delta"], statement["total"]
    notes = []
    if not statement["private"]:
        notes.append(
            "<strong>Nothing here holds for this folder.</strong> It is what one could say had secure noise of the "
            "same size been used."
        )
    if filled_from_data:
        notes.append(
            "<strong>The schema was filled from a file.</strong> Its bounds and categories were read from data that "
            "the curator declared public. They are not protected."
        )
    if total and total["releases"] > 1:
        notes.append(
            f"<strong>This is not the only release of these rows.</strong> There are {total['releases']:,}. All of "
            f"them together have {escaped(describe_total(total))}."
        )
    groups = ((group["rows"], group["epsilon"]) for group in statement["groups"])
    measurements = statement["measurements"]
    spent = [(m["sensitivity"] / m["scale"]) ** 2 for m in measurements]
    sources = dict.fromkeys(
        f"{'discrete ' * m['discrete']}{m['noise'].capitalize()}, {m['source']}" for m in measurements
    )
    return (
        "".join(f'<p class="note">{note}</p>' for note in notes)
        + '<div class="two"><div>'
        + "<p>Suppose someone knows every private row but one, and knows that this one is either A or B, each as "
        f"likely. With this folder they name the right one at most <strong>{_best_guess(epsilon, delta)}</strong> of "
        "the time. Without it they are right 50&nbsp;% of the time.</p>"
        "<p>In the terms of the field, the release is "
        f"<strong>({epsilon:g}, {power(delta)})-differentially private</strong> for {escaped(statement['unit'])} "
        f"({escaped(statement['relation'])}). If one row is replaced by any other, the probability of any outcome "
        f"changes by a factor of at most e<sup>ε</sup>&nbsp;=&nbsp;{_factor(epsilon)}, apart from a probability of "
        f"δ = {power(delta)}"
        + (f", one in {_one_in(delta)}" if delta else "")
        + ". This holds whatever else someone knows, and however the folder is used.</p>"
        "<p>It is no promise that nothing can be learnt about people. What holds for people in general can be learnt "
        "from the table, and it holds for those in it as for others. Whether the table is anonymous in law is for "
        "lawyers to say.</p><h3>What is not covered</h3><ul>"
        + "".join(f"<li>{escaped(item)}</li>" for item in statement["not_covered"])
        + "</ul></div><div><h3>People with several rows</h3>"
        "<p>One row is protected. Protection is weaker for a person with more.</p>"
        + table_html(
            ("Rows", "ε", "Factor e<sup>ε</sup>", "Right at most"),
            ((f"{k}", rounded_up(e), _factor(e), _best_guess(e, delta)) for k, e in groups),
            "numbers",
        )
        + "<h3>What was measured</h3><p>Noise was added to each number that was computed from the private rows. All "
        "else in this folder was made from these noisy numbers, and tells nothing more about the rows. "
        f"The noise: {escaped('; '.join(sources))}.</p>"
        + table_html(
            ("Measurement", "Numbers", "Noise of a count, in rows", "Share of the budget"),
            (
                (
                    escaped(m["name"].capitalize()),
                    f"{m['feature_map']['num_features']:,}",
                    noise_range(m["cell_noise"]),
                    percent(square / sum(spent)),
                )
                for m, square in zip(measurements, spent, strict=True)
            ),
        )
        + "</div></div>"
    )


def _best_guess(epsilon: float, delta: float) -> str:
    """The largest success rate in telling two equally likely rows apart: (1 + TV) / 2, with TV bounded by (ε, δ)."""
    share = (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon))
    return f"{math.ceil(1000 * share) / 10:.1f}&nbsp;%" if share < 0.999 else "almost 100&nbsp;%"


def _factor(epsilon: float) -> str:
    return power(math.exp(min(epsilon, 700)), 3)


def _one_in(delta: float) -> str:
    """1/δ, as HTML."""
    return f"{round(1 / delta):,}" if delta > 1e-15 else power(1 / delta, 4)
