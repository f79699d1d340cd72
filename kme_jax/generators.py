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
    ReleaseError,
    arrays_writer,
    check_files,
    check_folder,
    check_version,
    damaged,
    json_writer,
    load_arrays,
    save_folder,
)
from kme_jax.ledger import Ledger
from kme_jax.numerics import Progress
from kme_jax.privacy.budget import PrivacyBudget, check_num_rows, check_number
from kme_jax.privacy.mechanisms import Composition, PrivateEmbedding, perturb_securely, secure_mechanism
from kme_jax.privacy.statement import privacy_statement
from kme_jax.serialisation import decode, encode
from kme_jax.synthesis.generator import Generator, digest

# A measurement stays readable where only generators have changed: its budget is spent.
_VERSIONS = {"measurement_version": 1, "generator_version": 3}


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
    num_bytes = sum(array.nbytes for array in _arrays(draft).values())
    if folder is not None:
        if "\0" in os.fsdecode(folder):
            raise ReleaseError(f"{os.fsdecode(folder)}: cannot be written (null byte in its name)")
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
    """Writes measured.npz (all that was measured) and privacy.json into a new folder: both of them, or nothing.

    Raises:
      ReleaseError: the folder exists, or cannot be written.
    """
    writers = {"measured.npz": arrays_writer(_arrays(measured))}
    return save_folder(folder, writers | {"privacy.json": json_writer(generator_statement(measured))})


def _arrays(measured: LabelledMeasurement) -> dict[str, np.ndarray]:
    """All that a measurement is, as arrays."""
    arrays: dict[str, np.ndarray] = {}
    tree = {
        "measurement_version": _VERSIONS["measurement_version"],
        "embedding": _encode(measured.embedding, arrays, "embedding"),
        "counts": None if measured.counts is None else _encode(measured.counts, arrays, "counts"),
        "composition": encode(measured.composition, arrays, "composition"),
        "total": measured.total,
    }
    return arrays | {"json": _bytes(tree)}


def load_measurement(folder: str | os.PathLike) -> LabelledMeasurement:
    """What :func:`save_measurement` has written.

    Raises:
      ReleaseError: it is none, is damaged, or of another version.
    """
    tree, arrays = _read(pathlib.Path(folder), "measured.npz", "measurement_version")
    with damaged(pathlib.Path(folder) / "measured.npz"):
        embedding, counts = (
            None if tree[name] is None else PrivateEmbedding(**{k: decode(v, arrays) for k, v in tree[name].items()})
            for name in ("embedding", "counts")
        )
        return LabelledMeasurement(embedding, counts, decode(tree["composition"], arrays), tree["total"])


def _encode(private: PrivateEmbedding, arrays: dict[str, np.ndarray], name: str) -> dict[str, Any]:
    parts = {field.name: getattr(private, field.name) for field in dataclasses.fields(private)}
    return {part: encode(value, arrays, f"{name}.{part}") for part, value in parts.items()}


def _bytes(tree: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(json.dumps(tree, allow_nan=False).encode(), np.uint8)


def _read(folder: pathlib.Path, name: str, version: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The tree and the arrays of a file."""
    check_files(folder, (name, "privacy.json"))
    arrays = load_arrays(folder / name)
    with damaged(folder / name):
        tree = json.loads(arrays["json"].tobytes())
        found = tree.pop(version)
    check_version(folder, found, _VERSIONS[version])
    return tree, arrays


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
    """Writes generator.npz (all it takes to sample) and privacy.json into a new folder: both of them, or nothing.

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
    arrays: dict[str, np.ndarray] = {f"state {name}": value for name, value in generator.state.items()}
    tree = {
        "generator_version": _VERSIONS["generator_version"],
        "network": encode(generator.network, arrays, "network"),
        "rows": encode(generator.rows, arrays, "rows"),
        "shares": encode(generator.shares, arrays, "shares"),
        "report": encode(generator.report, arrays, "report"),
        "mechanisms": encode(generator.mechanisms, arrays, "mechanisms"),
        "measured": generator.measured,
        "statement": statement,
    }
    writers = {"generator.npz": arrays_writer(arrays | {"json": _bytes(tree)}), "privacy.json": json_writer(statement)}
    return save_folder(folder, writers)


def load_generator(folder: str | os.PathLike) -> Generator:
    """What :func:`save_generator` has written.

    Raises:
      ReleaseError: it is none, is damaged, or of another version.
    """
    folder = pathlib.Path(folder)
    path = folder / "generator.npz"
    tree, arrays = _read(folder, path.name, "generator_version")
    with damaged(folder / "privacy.json"):
        if json.loads((folder / "privacy.json").read_text()) != tree.pop("statement"):
            raise ValueError("it is not the statement of this generator")
    with damaged(path):
        state = {name.removeprefix("state "): value for name, value in arrays.items() if name.startswith("state ")}
        return Generator(state=state, **{name: decode(value, arrays) for name, value in tree.items()})
