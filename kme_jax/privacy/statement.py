"""The privacy statement of a release: its mechanisms, in numbers that a reader can check, and what is not covered."""

from __future__ import annotations

import dataclasses
import decimal
import functools
import importlib.metadata
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kme_jax._numerics import html
from kme_jax._numerics.short_repr import in_full, short_repr
from kme_jax._numerics.text import printable
from kme_jax._version import __version__
from kme_jax.privacy.budget import ADD_REMOVE, ADD_REMOVE_PERSON, REPLACE_ONE, Relation, unit_of
from kme_jax.privacy.calibration import discrete_epsilon, gaussian_epsilon
from kme_jax.privacy.composition import Composition
from kme_jax.privacy.mechanisms import NOT_PRIVATE, Mechanism, NoisyEmbedding, noise_of

FIRST_VERSION, _LAST_FILE = 3, 6  # of statements that are read, and of JSON schemas in schemas/
_FINE_NOISE, _PERSONS = 5, 6  # the first versions with fine noise, and with persons
GROUPS = (1, 2, 5)  # rows of one person, or persons, for which ε is stated

_RELATIONS: dict[Relation, str] = {
    REPLACE_ONE: "replace one row; the number of rows is public",
    ADD_REMOVE: "add or remove one row; the number of rows is noisy",
    ADD_REMOVE_PERSON: "add or remove all rows of one person; the number of rows is noisy",
}
_PUBLIC = {
    REPLACE_ONE: "the number of rows, the schema and the budget, which are public",
    ADD_REMOVE: "the schema and the budget, which are public",
    ADD_REMOVE_PERSON: "the schema, the budget and the largest number of rows of one person, which are public",
}
_OF_TOTAL: dict[Relation, str] = {
    REPLACE_ONE: " if one row is replaced",
    ADD_REMOVE: " if one row is added or removed",
    ADD_REMOVE_PERSON: " if all rows of one person are added or removed",
}
_NOT_COVERED = (
    "timing, memory use, logs and partial sums of the computation",
    "other releases about the same people",
    "the choice of kernel, bounds, schema or proposal, if it was made by looking at the rows",
)
COUNTED_BY = "rows count by "
"""The first words of the public input that names the weights of rows."""
_PUBLIC_ROWS = "rows that were used as public points: they are published as they are"


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class StatementField:
    """A field that statements have since a version after ``FIRST_VERSION``.

    Attributes:
      name: of the field.
      since: the first version of statements that has the field.
      schema: the JSON schema of its value, with a description.
      value: from the other fields of a statement, and the mechanisms of its measurements, to the JSON value. It must
        follow from them alone, because it is computed again when a release is loaded.
      text: from the value to a sentence of :func:`describe`, which is made safe to print; "" for none.
    """

    name: str
    since: int
    schema: dict[str, Any]
    value: Callable[[dict[str, Any], Sequence[Mechanism]], Any]
    text: Callable[[Any], str] = lambda value: ""


FIELDS: tuple[StatementField, ...] = ()
"""To add a field, add it here, with the next version. Statements of earlier versions are then still read."""


def newest_version() -> int:
    """The version of the statements that are written."""
    return max((_LAST_FILE, *(field.since for field in FIELDS)))


def schema(version: int | None = None) -> dict[str, Any]:
    """The JSON schema of a statement.

    Args:
      version: of the statement; the newest one, if None.

    Raises:
      ValueError: if there is no such version.
    """
    version = newest_version() if version is None else version
    if not FIRST_VERSION <= version <= newest_version():
        raise ValueError(f"version must be from {FIRST_VERSION} to {newest_version()}, got {version}")
    path = pathlib.Path(__file__).parent / "schemas" / f"privacy-{version}.schema.json"
    if path.exists():
        return json.loads(path.read_text())
    earlier = schema(version - 1)
    added = {field.name: field.schema for field in FIELDS if field.since == version}
    return earlier | {
        "title": f"Privacy statement of a kme_jax release, version {version}",
        "required": [*earlier["required"], *added],
        "properties": earlier["properties"] | {"statement_version": {"const": version}} | added,
    }


def version_of(statement: Any) -> int:
    """The version that a JSON value has to fit: the one that it states, or the newest one if that is none."""
    version = statement.get("statement_version") if isinstance(statement, dict) else None
    if type(version) is int and FIRST_VERSION <= version <= newest_version():
        return version
    return newest_version()


def as_version(statement: dict[str, Any], version: int) -> dict[str, Any]:
    """A statement of the newest version as one of an earlier version: without the fields that came later.

    Raises:
      ValueError: if the noise is fine, or the guarantee is for persons, which the version does not know.
    """
    if version < _FINE_NOISE and statement["discreteness"] is not None:
        raise ValueError(f"statement_version: noise that is fine has at least version {_FINE_NOISE}")
    if version < _PERSONS and statement["relation"] == _RELATIONS[ADD_REMOVE_PERSON]:
        raise ValueError(f"statement_version: a guarantee for persons has at least version {_PERSONS}")
    return {name: statement[name] for name in schema(version)["properties"]} | {"statement_version": version}


def rounded_up(value: float, digits: int = 4) -> str:
    """A positive number as text, rounded up to ``digits`` digits."""
    context = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
    return f"{float(context.create_decimal(repr(float(value)))):.{digits}g}"


def describe_total(total: Mapping[str, Any]) -> str:
    """(ε, δ) of all releases of the same rows, rounded up, and its relation, which may differ from that of the last
    release. If the last release has another δ, also ε at that δ."""
    return _describe_total(total) + _OF_TOTAL[total.get("relation", REPLACE_ONE)]


def _describe_total(total: Mapping[str, Any]) -> str:
    text = f"(ε, δ) = ({rounded_up(total['epsilon'])}, {rounded_up(total['delta']) if total['delta'] else 0})"
    at_delta = total["at_delta"]
    if at_delta is None:
        return f"{text}, and no finite ε at the δ of the last release"
    if at_delta["delta"] == total["delta"]:
        return text
    return f"{text}, or ε = {rounded_up(at_delta['epsilon'])} at δ = {rounded_up(at_delta['delta'])}"


def group_epsilon(mechanism: Mechanism | Composition, rows: int) -> float:
    """ε, at the δ of the mechanism, for a person who has k rows, or for k persons: from k²ρ or kμ, or kε for Laplace
    noise."""
    delta = mechanism.delta - mechanism.failure_probability
    if rows != 1 and mechanism.rho is not None:
        return discrete_epsilon(rows**2 * mechanism.rho, delta, mechanism.discreteness)
    if rows != 1 and (mu := mechanism.mu) is not None:
        return gaussian_epsilon(1 / (rows * mu), delta)
    return rows * mechanism.epsilon


def measurement_statement(name: str, noisy: NoisyEmbedding) -> dict[str, Any]:
    """The description of a measurement in the statement: its noise and its feature map."""
    feature_map, mechanism = noisy.feature_map, noisy.mechanism
    proof = feature_map.proof
    if mechanism.secure:
        proof += f", {feature_map.integers(mechanism.num_rows).proof}"
    if mechanism.relation != REPLACE_ONE:
        proof = proof.replace(".diameter", ".norm_bound")
    noise = feature_map.cell_noise(mechanism.scale, mechanism.num_rows)
    return noise_statement(mechanism) | {
        "name": name,
        "feature_map": {
            "name": type(feature_map).__name__,
            "kernel": in_full(feature_map.kernel),
            "num_features": feature_map.num_features,
            "diameter": mechanism.sensitivity * mechanism.num_rows / mechanism.max_rows,
            "proof": proof,
        },
        "cell_noise": None if noise is None else list(noise),
    }


def noise_statement(mechanism: Mechanism) -> dict[str, Any]:
    """The description of a mechanism in the statement."""
    return {
        "noise": mechanism.noise,
        "discrete": mechanism.secure,
        "source": mechanism.noise_source,
        "calibration": mechanism.calibration,
        "scale": mechanism.scale,
        "sensitivity": mechanism.sensitivity,
        "norm": noise_of(mechanism.noise).norm,
        "rho": mechanism.rho,
        "grid": mechanism.grid,
        "failure_probability": mechanism.failure_probability,
    }


def privacy_statement(
    measured: NoisyEmbedding | dict[str, NoisyEmbedding],
    *,
    composition: Composition | None = None,
    public_inputs: Sequence[str] = (),
    total: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The statement, as plain JSON values, see :func:`schema`.

    Args:
      measured: the noisy embedding that is released, or a dictionary of them by the names of their measurements.
      composition: the composition of several measurements; None for a single one.
      public_inputs: further public inputs that were used.
      total: the total of all releases of the same rows, as ``Ledger.spend`` returns it.
    """
    by_name = {"embedding": measured} if isinstance(measured, NoisyEmbedding) else measured
    mechanisms = [noisy.mechanism for noisy in by_name.values()]
    inputs = dict.fromkeys(name for noisy in by_name.values() for name in noisy.feature_map.public_inputs)
    return statement_of(
        [measurement_statement(name, noisy) for name, noisy in by_name.items()],
        mechanisms,
        composition=composition,
        public_inputs=[*inputs, *public_inputs],
        total=total,
    )


def statement_of(
    measurements: list[dict[str, Any]],
    mechanisms: Sequence[Mechanism],
    *,
    composition: Composition | None = None,
    public_inputs: Sequence[str] = (),
    total: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The statement of measurements, from their descriptions.

    Args:
      measurements: the descriptions, see :func:`measurement_statement`.
      mechanisms: the mechanism of each measurement.
      composition: the composition of several measurements; None for a single one.
      public_inputs: all public inputs that were used.
      total: see :func:`privacy_statement`.
    """
    combined = mechanisms[-1] if composition is None else composition
    statement: dict[str, Any] = {
        "statement_version": newest_version(),
        "private": all(mechanism.secure for mechanism in mechanisms),
        "epsilon": combined.epsilon,
        "delta": combined.delta,
        "relation": _RELATIONS[mechanisms[-1].relation],
        "unit": unit_of(mechanisms[-1].relation, mechanisms[-1].max_rows),
        "max_rows": mechanisms[-1].max_rows if mechanisms[-1].relation == ADD_REMOVE_PERSON else None,
        "person": mechanisms[-1].person,
        "num_rows": mechanisms[-1].num_rows,
        "groups": [{group_of(mechanisms[-1].relation): k, "epsilon": group_epsilon(combined, k)} for k in GROUPS],
        "rho": combined.rho,
        "discreteness": combined.discreteness,
        "measurements": measurements,
        "public_inputs": list(public_inputs),
        "not_covered": [
            _NOT_COVERED[0],
            _PUBLIC[mechanisms[-1].relation],
            *_NOT_COVERED[1:],
            *[_PUBLIC_ROWS] * ("public points" in public_inputs),
        ],
        "total": total,
        "versions": {"kme_jax": __version__} | _versions(),
    }
    for field in FIELDS:
        statement[field.name] = field.value(statement, mechanisms)
    return statement


@functools.cache
def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy", "scipy")}


def relation_of(statement: Mapping[str, Any]) -> Relation:
    """Which databases are neighbours for a statement.

    Raises:
      ValueError: if the statement names no known relation.
    """
    for relation, text in _RELATIONS.items():
        if statement.get("relation") == text:
            return relation
    raise ValueError("relation: is not known")


def group_of(relation: Relation) -> str:
    """What the groups of a statement are counted in."""
    return "persons" if relation == ADD_REMOVE_PERSON else "rows"


def has_noisy_count(statement: Mapping[str, Any]) -> bool:
    """Whether ``num_rows`` is a noisy count, because rows, or persons, are added or removed."""
    return statement["relation"] != _RELATIONS[REPLACE_ONE]


def is_for_persons(statement: Mapping[str, Any]) -> bool:
    """Whether the guarantee is for persons, of whom each may have several rows."""
    return statement["relation"] == _RELATIONS[ADD_REMOVE_PERSON]


def rows_used(statement: Mapping[str, Any]) -> str:
    """Which private rows a release is about, in words; "" if it is about all of them."""
    if not is_for_persons(statement):
        return ""
    return f"at most {statement['max_rows']} rows of each {printable(statement['person'])}"


def count_of(statement: Mapping[str, Any]) -> str:
    """The number of private rows as text. It starts with ≈ if it is a noisy count."""
    return f"{'≈' * has_noisy_count(statement)}{statement['num_rows']}"


def budget_in_short(statement: dict[str, Any]) -> str:
    """ε, δ and N for one line, with the relation and the kind of noise, and a warning if it was simulated."""
    noise = "secure noise" if statement["private"] else "simulated noise"
    relation = f"{relation_of(statement)}, " * has_noisy_count(statement)
    numbers = f"ε={statement['epsilon']:g}, δ={statement['delta']:g}, N{'' if relation else '='}{count_of(statement)}"
    budget = f"{numbers}, {relation}{noise}"
    return "NOT PRIVATE, " * (not statement["private"]) + budget


def card_of(title: str, statement: dict[str, Any], facts: Sequence[tuple[str, str]], *pieces: str) -> str:
    """HTML of a measurement or a release for notebooks: its budget, its noise, and what it holds.

    Args:
      title: the name of the class.
      statement: the privacy statement.
      facts: further names and values.
      pieces: HTML that follows, see ``kme_jax._numerics.html.card``.
    """
    sources = ", ".join(dict.fromkeys(measurement["source"] for measurement in statement["measurements"]))
    noise = f"secure: {sources}" if statement["private"] else f"simulated: {sources}"
    known = [
        ("privacy", f"ε = {statement['epsilon']:g}, δ = {statement['delta']:g} for {statement['unit']}"),
        ("relation", statement["relation"]),
        ("noise", noise),
        ("private rows", f"N {'= ' * (not has_noisy_count(statement))}{count_of(statement)}"),
    ]
    if statement["total"] and statement["total"]["releases"] > 1:
        total = f"{statement['total']['releases']} releases of these rows: {describe_total(statement['total'])}"
        known.append(("in all", total))
    return html.card(title, [*known, *facts], *pieces, warning="" if statement["private"] else NOT_PRIVATE)


def describe(statement: dict[str, Any]) -> str:
    """The statement in words, a few lines. Text from the statement is made safe to print."""
    if not statement["private"]:
        lines = ["NOT PRIVATE: the noise was simulated. With secure noise of this size, the following would hold:"]
    else:
        lines = []
    of_all = f", of {count_of(statement)} rows in all" if is_for_persons(statement) else f" of {count_of(statement)}"
    lines.append(
        f"({statement['epsilon']:g}, {statement['delta']:g})-differential privacy for "
        f"{printable(statement['unit'])}{of_all} ({printable(statement['relation'])})."
    )
    if is_for_persons(statement):
        lines.append(f"A person is all rows with the same {printable(statement['person'])}.")
    for text in (one for one in statement["public_inputs"] if one.startswith(COUNTED_BY)):
        lines.append(f"{printable(text[:1].upper() + text[1:])}.")
    for measurement in statement["measurements"]:
        cells = measurement["cell_noise"]
        lines.append(
            f"{printable(measurement['name'].capitalize())}: {'discrete ' * measurement['discrete']}"
            f"{printable(measurement['noise'])} noise "
            f"of scale {measurement['scale']:.4g} for each of {measurement['feature_map']['num_features']} features"
            + (f" ({cells[0]:.3g} to {cells[1]:.3g} rows for each count of a marginal)" if cells else "")
            + f", {printable(measurement['norm'])} sensitivity {measurement['sensitivity']:.4g}; "
            + f"{printable(measurement['source'])}."
        )
    if statement["rho"] is not None:
        lines.append(f"ρ = {statement['rho']:.6g} of zero-concentrated differential privacy.")
    if statement.get("discreteness") is not None:  # statements of earlier versions do not have it
        lines.append(
            f"The noise is like rounded continuous noise, up to a probability of {statement['discreteness']:.2g}."
        )
    for group in statement["groups"][1:]:
        of_whom = f"{group['persons']} persons" if "persons" in group else f"a person with {group['rows']} rows"
        lines.append(f"For {of_whom} ε is {rounded_up(group['epsilon'])}.")
    if statement["total"] and statement["total"]["releases"] > 1:
        earlier = statement["total"]["releases"] - 1
        lines.append(
            f"With {earlier} earlier release{'s' * (earlier > 1)} of these rows the total is "
            f"{describe_total(statement['total'])}."
        )
    texts = [field.text(statement[field.name]) for field in FIELDS if field.name in statement]
    lines += [printable(text) for text in texts if text]
    lines.append("Not covered: " + "; ".join(map(printable, statement["not_covered"])) + ".")
    return "\n".join(lines)
