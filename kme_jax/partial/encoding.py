"""How rows of Arrow data become rows of a feature map, each by itself. All of it is public."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
from jaxtyping import Real

from kme_jax._numerics.arrow import numbers_of
from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.text import said, shown
from kme_jax.domain import Bounds
from kme_jax.storage.codec import decode, encode


class RowEncoding(abc.ABC):
    """How rows of Arrow data become rows of a feature map.

    A subclass is a frozen dataclass that can be pickled. It holds no private value. ``register_encoding`` makes it
    known, so that a task can be read from JSON.

    Attributes:
      kind: the name of the encoding in JSON.
    """

    kind: ClassVar[str]

    @property
    def bounds(self) -> Bounds | None:
        """Public bounds by which rows are scaled to [0, 1]^d; None if they are not scaled."""
        return None

    @property
    def has_levels(self) -> bool:
        """Whether the last column of :meth:`rows` holds the levels of rows with weights."""
        return False

    @abc.abstractmethod
    def rows(self, batch: pa.RecordBatch) -> Real[np.ndarray, "n _"]:
        """The rows of a batch, [n, d], and maybe their levels as one more column. SENSITIVE.

        Each row must depend on its own cells alone. No cell may raise an error.

        Raises:
          ValueError: a column is missing.
        """

    @abc.abstractmethod
    def to_json(self) -> dict[str, Any]:
        """All fields as plain JSON."""

    @classmethod
    @abc.abstractmethod
    def from_json(cls, document: dict[str, Any]) -> RowEncoding:
        """The inverse of :meth:`to_json`.

        Raises:
          ValueError: the document is not valid.
        """


_ENCODINGS: dict[str, type[RowEncoding]] = {}


_C = TypeVar("_C", bound=type[RowEncoding])


def register_encoding(cls: _C) -> _C:
    """Class decorator: tasks with this encoding can be read from JSON.

    Raises:
      ValueError: another encoding has this kind.
    """
    known = _ENCODINGS.setdefault(cls.kind, cls)
    if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"{cls.kind}: there is an encoding of this kind already")
    _ENCODINGS[cls.kind] = cls
    return cls


def encoding_of(kind: Any) -> type[RowEncoding]:
    """The encoding of a kind.

    Raises:
      ValueError: none is registered.
    """
    if not isinstance(kind, str) or kind not in _ENCODINGS:
        raise ValueError(f"no encoding {said(kind)} is known here: import the module that defines it first")
    return _ENCODINGS[kind]


@register_encoding
@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class PointEncoding(RowEncoding):
    """Columns of numbers, as rows of a feature map of points.

    A cell that is not a number becomes NaN, as in ``kme_jax.embedding.private_points``. The type of a column has no
    influence on what a cell becomes.

    Attributes:
      names: of the d columns, in their order. Other columns are not looked at.
      scale: public bounds by which rows are scaled to [0, 1]^d; None if the map is of rows as they are.

    Examples:
      >>> import pyarrow as pa
      >>> from kme_jax.partial import PointEncoding
      >>> PointEncoding(("x", "y")).rows(pa.record_batch({"y": ["0.5", None], "x": [1, 2]}))
      array([[1. , 0.5],
             [2. , nan]])
    """

    kind = "points"
    names: tuple[str, ...]
    scale: Bounds | None = None

    def __post_init__(self):
        names: Any = self.names
        if isinstance(names, str) or not names or not all(isinstance(name, str) for name in names):
            raise ValueError("names: expected a list of names of columns")
        object.__setattr__(self, "names", tuple(names))
        if self.scale is not None and self.scale.dim != len(self.names):
            raise ValueError(f"bounds: expected one pair for each of {len(self.names)} columns, got {self.scale.dim}")

    @property
    def bounds(self) -> Bounds | None:
        return self.scale

    def rows(self, batch):
        missing = [name for name in self.names if batch.schema.names.count(name) != 1]
        if missing:
            raise ValueError(f"rows: expected one column {shown(missing)}")
        return np.stack([numbers_of(batch.column(name)) for name in self.names], axis=1)

    def to_json(self):
        arrays: dict[str, np.ndarray] = {}
        scale = encode(self.scale, arrays, "scale")
        return {"names": list(self.names), "scale": scale, "arrays": {k: v.tolist() for k, v in arrays.items()}}

    @classmethod
    def from_json(cls, document):
        arrays = {name: np.asarray(values, np.float64) for name, values in document["arrays"].items()}
        return cls(tuple(document["names"]), decode(document["scale"], arrays, Bounds | None))
