"""Generators that may be published: measured with secure noise, kept in a ledger, saved with a privacy statement.

The steps of ``kme_jax.dp_merf``, one by one: :func:`measure_labelled_securely` sees private rows; then
``kme_jax.synthesis.generator.train_generator`` as often as one likes; then :func:`save_generator`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import typing
from typing import Any

import numpy as np

from kme_jax.algorithms import COUNT_SHARE, LabelledMeasurement, warn_of_uncounted_rows
from kme_jax.embedding import class_labels, integer_embedding, private_points
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.feature_maps.integer import integer_map
from kme_jax.feature_maps.labelled import LabelledMap
from kme_jax.feature_maps.table import TableMap
from kme_jax.folders import (
    ROOM,
    arrays_writer,
    check_folder,
    damaged,
    json_writer,
    open_folder,
    save_folder,
)
from kme_jax.ledger import Ledger
from kme_jax.numerics import Progress
from kme_jax.privacy.budget import PrivacyBudget, check_num_rows, check_number
from kme_jax.privacy.mechanisms import Composition, PrivateEmbedding, perturb_securely, secure_mechanism
from kme_jax.privacy.statement import privacy_statement, statement_of
from kme_jax.serialisation import decode, decode_embedding, encode
from kme_jax.synthesis.generator import Generator, digest
from kme_jax.validation import require
from kme_jax.verification import (
    check_coordinates,
    check_described,
    check_parts,
    check_sensitivity,
    check_statement,
)

_STATE = "state "  # what the names of arrays of parameters begin with


def measure_labelled_securely(
    rows: np.ndarray,
    features: FeatureMap,
    *,
    epsilon: float,
    delta: float,
    count_share: float = COUNT_SHARE,
    ledger: Ledger | None = None,
    database: str = "",
    again: bool = False,
    folder: str | os.PathLike | None = None,
    progress: Progress | None = None,
) -> LabelledMeasurement:
    """[H] algorithm 1, steps 1 to 3, with noise that may be published.

    Formal guarantee: (ε, δ)-differential privacy for one row, N public: exact integer sums and OpenDP's discrete
    Gaussian noise, see ``perturb_securely``; ρ of the two measurements adds up to no more than the budget's, which is
    checked (``Composition``). The ledger, if there is one, is written before noise is drawn. No error depends on what a
    row holds: one that the map does not cover, or whose label is none of the classes, counts as the zero vector.
    Where noisy shares of the classes show that such rows are many, a warning says so.

    Args:
      rows: the private rows, [N, d]: numbers, codes of categories for a ``MixedMap``, and the label in the last column
        for a ``LabelledMap``. Numbers are scaled by public bounds before, see ``Bounds.to_unit``.
      features: ψ, public. Shares of the classes are measured too where it has labels.
      epsilon: ε > 0.
      delta: δ in (0, 1/N).
      count_share: of ρ, for the shares of the classes; in (0, 1).
      ledger: of the curator.
      database: the name of the rows in the ledger.
      again: whether rows of that name may have been released before.
      folder: a new one that the measurement is saved to at once, see :func:`save_measurement`: training may take long,
        and be interrupted, and what is lost is spent all the same.
      progress: called with (rows done, N), as if all classes were of one size.

    Raises:
      ValueError: shapes, a budget or an option that cannot be; a spent budget (``LedgerError``).
      ModuleNotFoundError: OpenDP is not installed.
    """
    budget, rows = PrivacyBudget(epsilon, delta), private_points(rows)
    check_num_rows(len(rows), budget)
    share, labels = 1.0, None
    if isinstance(features, LabelledMap):
        count_share = check_number("count_share", count_share)
        if not 0 < count_share < 1:
            raise ValueError(f"count_share must be between 0 and 1, got {count_share}")
        share, labels = 1 - count_share, TableMap.of_codes(features.num_labels)
    # What can fail does so before anything is spent.
    mechanisms = [secure_mechanism(integer_map(features, len(rows)), len(rows), budget, share=share)]
    left = PrivacyBudget(epsilon, delta - mechanisms[0].failure_probability)
    if labels is not None:
        mechanisms.append(secure_mechanism(integer_map(labels, len(rows)), len(rows), left, share=count_share))
    composition = Composition.of(mechanisms, budget)
    nothing = [
        PrivateEmbedding(feature_map, np.zeros(feature_map.num_features), mechanism)
        for feature_map, mechanism in zip([features] + [labels] * (labels is not None), mechanisms, strict=True)
    ]
    draft = LabelledMeasurement(nothing[0], nothing[1] if labels is not None else None, composition)
    json.dumps(generator_statement(draft), allow_nan=False)
    num_bytes = sum(array.nbytes for array in _encoded(draft)[0].values())
    if folder is not None:
        check_folder(folder, 2 * num_bytes + ROOM)
    if ledger is not None:
        ledger.check(database, again=again)
    sums = integer_embedding(features, rows, progress=progress)
    counts = None if labels is None else integer_embedding(labels, class_labels(features, rows))
    planned = Composition.planned(budget, composition.failure_probability)
    total = None if ledger is None else ledger.spend(database, planned, again=again)
    with contextlib.nullcontext() if ledger is None else ledger.recorded(folder):
        private = perturb_securely(sums, budget, share=share)
        shares = None if counts is None else perturb_securely(counts, left, share=count_share)
        measured = LabelledMeasurement(private, shares, composition, total)
        if folder is not None:
            save_measurement(folder, measured)
    if shares is not None:
        warn_of_uncounted_rows(shares)
    return measured


def save_measurement(folder: str | os.PathLike, measured: LabelledMeasurement) -> pathlib.Path:
    """Writes measured.npz (all that was measured), privacy.json and a manifest into a new folder: all of them, or
    nothing.

    Raises:
      ReleaseError: the folder exists, or cannot be written.
    """
    statement = json_writer(generator_statement(measured))
    writers = {"measured.npz": arrays_writer(*_encoded(measured)), "privacy.json": statement}
    return save_folder(folder, "generator measurement", writers)


def _encoded(measured: LabelledMeasurement) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays, and a JSON document that refers to them."""
    arrays: dict[str, np.ndarray] = {}
    tree = {
        "embedding": _encode(measured.embedding, arrays, "embedding"),
        "counts": None if measured.counts is None else _encode(measured.counts, arrays, "counts"),
        "composition": encode(measured.composition, arrays, "composition"),
        "total": measured.total,
    }
    return arrays, tree


def load_measurement(folder: str | os.PathLike) -> LabelledMeasurement:
    """What :func:`save_measurement` has written. What does not follow from the mechanisms is refused, see
    ``kme_jax.verification``.

    Raises:
      ReleaseError: it is none, is damaged, or edited, or of another version.
    """
    opened = open_folder(folder, ("generator measurement",))
    statement = opened.json("privacy.json")
    with opened.arrays("measured.npz") as arrays:
        tree = arrays.tree()
        if not isinstance(tree, dict) or set(tree) != {"embedding", "counts", "composition", "total"}:
            raise ValueError("it has other fields")
        embedding = decode_embedding(tree["embedding"], arrays)
        counts = None if tree["counts"] is None else decode_embedding(tree["counts"], arrays)
        measured = LabelledMeasurement(embedding, counts, decode(tree["composition"], arrays, Composition))
        _check_measured(measured)
    with damaged(opened.path / "privacy.json"):
        measured = dataclasses.replace(measured, total=tree["total"])
        check_statement(statement, measured.total, lambda _: generator_statement(measured))
    return measured


def _check_measured(measured: LabelledMeasurement) -> None:
    """Raises ValueError unless these can be the parts of one measurement."""
    embedding, counts = measured.embedding, measured.counts
    check_parts([embedding.mechanism] + [m.mechanism for m in filter(None, [counts])], measured.composition)
    check_sensitivity(embedding.mechanism, embedding.feature_map)
    check_coordinates(embedding)
    if counts is not None:
        labelled = isinstance(embedding.feature_map, LabelledMap) and isinstance(counts.feature_map, TableMap)
        require(labelled, "counts of classes belong to rows with labels")
        expected = TableMap.of_codes(embedding.feature_map.num_labels)
        require(counts.feature_map.equals(expected), "the counts are not those of the classes")
        check_sensitivity(counts.mechanism, counts.feature_map)
        check_coordinates(counts)


def _encode(private: PrivateEmbedding, arrays: dict[str, np.ndarray], name: str) -> dict[str, Any]:
    parts = {field.name: getattr(private, field.name) for field in dataclasses.fields(private)}
    return {part: encode(value, arrays, f"{name}.{part}") for part, value in parts.items()}


def generator_statement(measured: LabelledMeasurement, public_inputs: tuple[str, ...] = ()) -> dict[str, Any]:
    """The privacy statement of all that is made from a measurement; see ``kme_jax.privacy.statement``."""
    parts = {"embedding": measured.embedding}
    if measured.counts is not None:
        parts["counts of the classes"] = measured.counts
    return privacy_statement(parts, composition=measured.composition, public_inputs=public_inputs, total=measured.total)


def save_generator(
    folder: str | os.PathLike,
    generator: Generator,
    measured: LabelledMeasurement,
    *,
    public_inputs: tuple[str, ...] = (),
) -> pathlib.Path:
    """Writes generator.npz (all it takes to sample), privacy.json and a manifest into a new folder: all of them, or
    nothing.

    Args:
      folder: a new one.
      generator: what was trained.
      measured: what it was trained on.
      public_inputs: what else is public knowledge, and was used: bounds, for instance.

    Raises:
      ReleaseError: the folder exists, or cannot be written.
      ValueError: a generator that was trained on something else: the statement would be wrong.
    """
    if generator.measured != digest(measured.embedding):
        raise ValueError("the generator was not trained on this measurement")
    statement = generator_statement(measured, public_inputs)
    arrays: dict[str, np.ndarray] = {f"{_STATE}{name}": value for name, value in generator.state.items()}
    names = [field.name for field in dataclasses.fields(generator) if field.name != "state"]
    tree = {name: encode(getattr(generator, name), arrays, name) for name in names}
    tree |= {
        "composition": encode(measured.composition, arrays, "composition"),
        "measurements": statement["measurements"],
        "public_inputs": statement["public_inputs"],
        "total": measured.total,
    }
    writers = {"generator.npz": arrays_writer(arrays, tree), "privacy.json": json_writer(statement)}
    return save_folder(folder, "generator", writers)


def load_generator(folder: str | os.PathLike) -> Generator:
    """What :func:`save_generator` has written. What does not follow from the mechanisms is refused, see
    ``kme_jax.verification``. Feature maps are not in the folder, so that their diameters are taken from it.

    Raises:
      ReleaseError: it is none, is damaged, or edited, or of another version.
    """
    opened = open_folder(folder, ("generator",))
    statement = opened.json("privacy.json")
    hints = typing.get_type_hints(Generator)
    names = [field.name for field in dataclasses.fields(Generator) if field.name != "state"]
    with opened.arrays("generator.npz") as arrays:
        tree = arrays.tree()
        if not isinstance(tree, dict) or set(tree) != {*names, "composition", "measurements", "public_inputs", "total"}:
            raise ValueError("it has other fields")
        state = {name.removeprefix(_STATE): arrays[name] for name in arrays if name.startswith(_STATE)}
        generator = Generator(state=state, **{name: decode(tree[name], arrays, hints[name]) for name in names})
        generator.validate()
        composition = decode(tree["composition"], arrays, Composition)
        check_parts(generator.mechanisms, composition)
        check_described(tree["measurements"], generator.mechanisms)
        if len(generator.mechanisms) == 2:
            require(generator.shares is not None, "counts of classes belong to shares")
            check_sensitivity(generator.mechanisms[1], TableMap.of_codes(len(generator.shares)))
    with damaged(opened.path / "privacy.json"):
        check_statement(
            statement,
            tree["total"],
            lambda total: statement_of(
                tree["measurements"],
                generator.mechanisms,
                composition=composition,
                public_inputs=tree["public_inputs"],
                total=total,
            ),
        )
    return generator
