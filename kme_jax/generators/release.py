"""Measurements and releases of generators that may be published, with their privacy statements.

``kme_jax.generators.measure_generator`` sees the private rows. ``GeneratorMeasurement.synthesise`` trains a generator,
which spends nothing. ``GeneratorRelease.sample`` returns synthetic rows.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import typing
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Float32, Int, Real, Shaped

from kme_jax._numerics import html
from kme_jax._numerics.precision import MAX_SEED, Progress
from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.validation import require
from kme_jax.feature_maps.labelled import LabelledMap
from kme_jax.feature_maps.table import TableMap
from kme_jax.generators.generator import Generator
from kme_jax.generators.networks import MLP, Network
from kme_jax.generators.settings import Training
from kme_jax.generators.train import digest, train_generator
from kme_jax.privacy.budget import check_integer
from kme_jax.privacy.composition import Composition
from kme_jax.privacy.mechanisms import NoisyEmbedding
from kme_jax.privacy.statement import budget_in_short, card_of, privacy_statement, statement_of
from kme_jax.privacy.verification import (
    check_coordinates,
    check_described,
    check_discreteness,
    check_parts,
    check_sensitivity,
    check_statement,
)
from kme_jax.storage.codec import decode, decode_embedding, encode, encode_embedding
from kme_jax.storage.folders import (
    Kind,
    arrays_writer,
    damaged,
    json_writer,
    open_folder,
    register_kind,
    save_folder,
)

_STATE = "state "  # prefix of the names of arrays of parameters


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class GeneratorMeasurement:
    """The two measurements of [H] algorithm 1. A generator learns nothing else about the private rows. Public.

    Attributes:
      embedding: the noisy embedding μ̃.
      counts: noisy shares of the classes; None if they were not measured.
      composition: of the two mechanisms.
      total: the privacy loss of all releases of the same rows, from a ledger, see ``Ledger.spend``; or None.
    """

    embedding: NoisyEmbedding
    counts: NoisyEmbedding | None
    composition: Composition
    total: dict[str, Any] | None = None

    def _in_short(self) -> str:
        feature_map = self.embedding.feature_map
        return f"{budget_in_short(self.statement)}, {type(feature_map).__name__} of {feature_map.num_features} features"

    def _repr_html_(self) -> str:
        feature_map = self.embedding.feature_map
        facts = [("measured", f"{feature_map.num_features} features of {type(feature_map).__name__}")]
        facts += [("next", ".synthesise() trains a generator, and spends nothing")]
        return card_of("GeneratorMeasurement", self.statement, facts)

    @property
    def statement(self) -> dict[str, Any]:
        """The privacy statement of everything that is computed from this, see ``kme_jax.privacy.statement``."""
        return self.statement_with(())

    def statement_with(self, public_inputs: Sequence[str]) -> dict[str, Any]:
        """:attr:`statement` with further public inputs, which it names."""
        measured = {"embedding": self.embedding}
        if self.counts is not None:
            measured["counts of the classes"] = self.counts
        return privacy_statement(measured, composition=self.composition, public_inputs=public_inputs, total=self.total)

    def synthesise(
        self,
        network: Network | None = None,
        training: Training | None = None,
        *,
        seed: int = 0,
        bounds: tuple[float | Real[np.ndarray, "d"], float | Real[np.ndarray, "d"]] | None = None,
        levels: int = 0,
        checkpoint: str | None = None,
        public_inputs: Sequence[str] = (),
        progress: Progress | bool = False,
    ) -> GeneratorRelease:
        """A generator for the measurement. This is post-processing: each call spends nothing.

        Args:
          network: description of the network; an ``MLP`` if None.
          training: configuration of the training; its defaults if None.
          seed: of parameters and latent codes.
          bounds: public bounds of the numbers, see ``train_generator``.
          levels: see ``train_generator``.
          checkpoint: a folder for checkpoints, see ``train_generator``.
          public_inputs: names of further public inputs that were used. The statement has them. It has the bounds
            without being told.
          progress: True for a bar, or a function that is called with (steps done, total steps).

        Raises:
          ValueError: as for ``train_generator``, or the seed is not from 0 to 2³² − 1, or the public inputs are no
            sequence of names.
        """
        _check_names(public_inputs)
        generator = train_generator(
            jax.random.key(check_integer("seed", seed, 0, MAX_SEED)),
            self.embedding,
            MLP() if network is None else network,
            training,
            counts=self.counts,
            bounds=bounds,
            levels=levels,
            checkpoint=checkpoint,
            progress=progress,
        )
        return GeneratorRelease.create(generator, self, public_inputs)

    def save(self, folder: str | os.PathLike) -> pathlib.Path:
        """Writes measured.npz (the measurement), privacy.json and a manifest into a new folder: all of them, or
        nothing.

        Raises:
          ReleaseError: the folder exists, or cannot be written.
        """
        writers = {"measured.npz": arrays_writer(*self.encoded()), "privacy.json": json_writer(self.statement)}
        return save_folder(folder, "generator measurement", writers)

    def encoded(self) -> tuple[dict[str, Shaped[np.ndarray, "..."]], dict[str, Any]]:
        """The measurement as arrays, and a JSON document that refers to them."""
        arrays: dict[str, Shaped[np.ndarray, "..."]] = {}
        tree = {
            "embedding": encode_embedding(self.embedding, arrays, "embedding"),
            "counts": None if self.counts is None else encode_embedding(self.counts, arrays, "counts"),
            "composition": encode(self.composition, arrays, "composition"),
            "total": self.total,
        }
        return arrays, tree

    @classmethod
    def load(cls, folder: str | os.PathLike) -> GeneratorMeasurement:
        """A measurement that :meth:`save` has written.

        A statement that does not follow from the mechanisms is refused, see ``kme_jax.privacy.verification``.

        Raises:
          ReleaseError: the folder has no measurement, is damaged or edited, or has another version.
        """
        opened = open_folder(folder, ("generator measurement",))
        statement = opened.json("privacy.json")
        with opened.arrays("measured.npz") as arrays:
            tree = arrays.tree()
            if not isinstance(tree, dict) or set(tree) != {"embedding", "counts", "composition", "total"}:
                raise ValueError("it has other fields")
            embedding = decode_embedding(tree["embedding"], arrays)
            counts = None if tree["counts"] is None else decode_embedding(tree["counts"], arrays)
            measured = cls(embedding, counts, decode(tree["composition"], arrays, Composition))
            _check_measured(measured)
        with damaged(opened.path / "privacy.json"):
            measured = dataclasses.replace(measured, total=tree["total"])
            check_statement(statement, measured.total, lambda _: measured.statement)
        return measured


def _check_measured(measured: GeneratorMeasurement) -> None:
    """Raises ValueError if the fields cannot come from one measurement."""
    embedding, counts = measured.embedding, measured.counts
    check_parts([embedding.mechanism] + [m.mechanism for m in filter(None, [counts])], measured.composition)
    check_sensitivity(embedding.mechanism, embedding.feature_map)
    check_coordinates(embedding)
    if counts is not None:
        labelled, counted = embedding.feature_map, counts.feature_map
        if not isinstance(labelled, LabelledMap) or not isinstance(counted, TableMap):
            raise ValueError("counts of classes belong to rows with labels")
        of_classes = TableMap.of_codes(labelled.num_labels), TableMap.of_codes(labelled.num_labels, 1)
        require(any(map(counted.equals, of_classes)), "the counts are not those of the classes")
        check_sensitivity(counts.mechanism, counts.feature_map)
        check_coordinates(counts)


def _check_names(public_inputs: Sequence[str]) -> None:
    """Raises ValueError unless these are names. One text would be taken for its letters."""
    if isinstance(public_inputs, str) or not all(isinstance(name, str) for name in public_inputs):
        raise ValueError(f'public_inputs: expected names, such as ("bounds",), got {public_inputs!r:.50}')


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class GeneratorRelease:
    """A release of a generator, with the fields from which its privacy statement follows. Public.

    Attributes:
      generator: the trained generator.
      composition: of the mechanisms of the measurement that it was trained on.
      measurements: descriptions of the measured embeddings, as in the statement.
      public_inputs: names of the public inputs that were used.
      total: the privacy loss of all releases of the same rows, from a ledger; or None.
    """

    generator: Generator
    composition: Composition
    measurements: list[dict[str, Any]]
    public_inputs: list[str]
    total: dict[str, Any] | None

    @classmethod
    def create(
        cls, generator: Generator, measured: GeneratorMeasurement, public_inputs: Sequence[str] = ()
    ) -> GeneratorRelease:
        """The release of a generator.

        Args:
          generator: the trained generator.
          measured: the measurement that it was trained on.
          public_inputs: names of further public inputs that were used, beside the bounds of the generator.

        Raises:
          ValueError: the generator was trained on another measurement, so the statement would be wrong; the public
            inputs are no sequence of names.
        """
        _check_names(public_inputs)
        if generator.rows.lower is not None and not any("bounds" in name for name in public_inputs):
            public_inputs = ["bounds", *public_inputs]
        if generator.measured != digest(measured.embedding):
            raise ValueError("the generator was not trained on this measurement: call synthesise of the measurement")
        statement = measured.statement_with(public_inputs)
        return cls(
            generator, measured.composition, statement["measurements"], statement["public_inputs"], measured.total
        )

    def _in_short(self) -> str:
        return f"{budget_in_short(self.statement)}, {type(self.generator.network).__name__}"

    def _repr_html_(self) -> str:
        generator = self.generator
        facts = [("generator", repr(generator.network))]
        if generator.shares is not None:
            more = ", ..." * (len(generator.shares) > 10)
            facts.append(("shares of classes", ", ".join(map(html.number, generator.shares[:10])) + more))
        facts.append(("next", ".sample(1000) makes synthetic rows, and spends nothing"))
        return card_of("GeneratorRelease", self.statement, facts, generator.report._repr_html_())

    @property
    def statement(self) -> dict[str, Any]:
        """The privacy statement."""
        return self._statement(self.total)

    def _statement(self, total: dict[str, Any] | None) -> dict[str, Any]:
        return statement_of(
            self.measurements,
            self.generator.mechanisms,
            composition=self.composition,
            public_inputs=self.public_inputs,
            total=total,
        )

    def sample(
        self,
        num_rows: int,
        *,
        seed: int = 0,
        labels: Int[np.ndarray, "n"] | Literal["balanced"] | None = None,
        noise: bool = True,
    ) -> Float32[np.ndarray, "n columns"]:
        """Synthetic rows, float32 [num_rows, columns], see ``Generator.sample``.

        They come from the release alone, so nothing is spent.
        """
        return self.generator.sample(num_rows, seed=seed, labels=labels, noise=noise)

    def save(self, folder: str | os.PathLike) -> pathlib.Path:
        """Writes generator.npz (the generator), privacy.json and a manifest into a new folder: all of them, or
        nothing.

        Raises:
          ReleaseError: the folder exists, or cannot be written.
        """
        generator = self.generator
        arrays: dict[str, Shaped[np.ndarray, "..."]] = {
            f"{_STATE}{name}": value for name, value in generator.state.items()
        }
        tree = {name: encode(getattr(generator, name), arrays, name) for name in _GENERATOR_FIELDS}
        tree |= {
            "composition": encode(self.composition, arrays, "composition"),
            "measurements": self.measurements,
            "public_inputs": self.public_inputs,
            "total": self.total,
        }
        writers = {"generator.npz": arrays_writer(arrays, tree), "privacy.json": json_writer(self.statement)}
        return save_folder(folder, "generator", writers)

    @classmethod
    def load(cls, folder: str | os.PathLike) -> GeneratorRelease:
        """A release that :meth:`save` has written. It draws rows, and cannot be trained further: keep the folder of the
        measurement, and train on it again.

        A statement that does not follow from the mechanisms is refused, see ``kme_jax.privacy.verification``. The
        folder has no feature maps, so the diameters that it states are not recomputed.

        Raises:
          ReleaseError: the folder has no generator, is damaged or edited, or has another version.
        """
        opened = open_folder(folder, ("generator",))
        statement = opened.json("privacy.json")
        hints = typing.get_type_hints(Generator)
        with opened.arrays("generator.npz") as arrays:
            tree = arrays.tree()
            others = {"composition", "measurements", "public_inputs", "total"}
            if not isinstance(tree, dict) or set(tree) != {*_GENERATOR_FIELDS, *others}:
                raise ValueError("it has other fields")
            state = {name.removeprefix(_STATE): arrays[name] for name in arrays if name.startswith(_STATE)}
            fields = {name: decode(tree[name], arrays, hints[name]) for name in _GENERATOR_FIELDS}
            generator = Generator(state=state, **fields)
            generator.validate()
            composition = decode(tree["composition"], arrays, Composition)
            check_parts(generator.mechanisms, composition)
            check_described(tree["measurements"], generator.mechanisms)
            for described, mechanism in zip(tree["measurements"], generator.mechanisms, strict=True):
                check_discreteness(mechanism, described["feature_map"]["num_features"])
            if len(generator.mechanisms) == 2:
                if generator.shares is None:
                    raise ValueError("counts of classes belong to shares")
                counted = generator.mechanisms[1]
                plain = counted.grid is not None and counted.grid * counted.num_rows > 0.5  # by an earlier version
                of_classes = TableMap.of_codes(len(generator.shares), *[1] * plain)
                check_sensitivity(counted, of_classes)
        with damaged(opened.path / "privacy.json"):
            release = cls(generator, composition, tree["measurements"], tree["public_inputs"], tree["total"])
            check_statement(statement, release.total, release._statement)
        return release


_GENERATOR_FIELDS = [field.name for field in dataclasses.fields(Generator) if field.name != "state"]
register_kind(
    Kind(
        "generator measurement",
        2,
        ("measured.npz", "privacy.json"),
        "the measurement of a generator",
        GeneratorMeasurement.load,
        "GeneratorMeasurement.synthesise trains a generator on it",
    )
)
register_kind(
    Kind(
        "generator",
        4,
        ("generator.npz", "privacy.json"),
        "a generator",
        GeneratorRelease.load,
        "kme_jax.load({!r}).sample(1000) makes rows",
    )
)
