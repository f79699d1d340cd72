"""What a worker needs to sum rows: a small public object, as a pickle or as JSON."""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import json
from typing import Any

import numpy as np

from kme_jax._numerics.short_repr import in_short, short_repr
from kme_jax._numerics.text import said
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.partial.encoding import RowEncoding, encoding_of
from kme_jax.privacy.budget import check_integer
from kme_jax.storage.codec import decode, encode

_VERSION = 1
_MOST_ROWS = 2**61
_FIELDS = ("version", "run", "measurement", "rows_planned", "rows_are_public", "map", "arrays", "encoding", "rows")
_TYPES = ("float32", "float64", "int32", "int64", "uint32", "uint64")


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """One sum over all rows, for one measurement. It is public, and holds no private value.

    Attributes:
      feature_map: ψ, whose integer features are summed.
      encoding: how rows of Arrow data become rows of the map.
      rows_planned: N if it is public. Otherwise a public number that is at least N. The integers are made for it.
      rows_are_public: whether N is public, as under replace_one.
      measurement: a name of the measurement, unique within the run.
      run: a name of the run. Partials of different runs are never added. It is chosen at random, or by the curator.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Gaussian, SubspaceMap
      >>> from kme_jax.partial import PointEncoding, Task
      >>> points = np.random.default_rng(1).normal(size=(20, 2))  # public
      >>> feature_map = SubspaceMap.from_points(Gaussian(gamma=0.5), points)
      >>> task = Task(feature_map, PointEncoding(("x", "y")), rows_planned=1000)
      >>> Task.from_json(task.to_json()).digest == task.digest
      True
    """

    feature_map: FeatureMap
    encoding: RowEncoding
    rows_planned: int
    rows_are_public: bool = True
    measurement: str = "rows"
    run: str = ""

    def __post_init__(self):
        planned = check_integer("rows_planned", self.rows_planned, 1, _MOST_ROWS)
        object.__setattr__(self, "rows_planned", planned)
        for name, kind in (("rows_are_public", bool), ("measurement", str), ("run", str)):
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"{name}: expected {kind.__name__}, got {type(getattr(self, name)).__name__}")
        if not isinstance(self.feature_map, FeatureMap) or not isinstance(self.encoding, RowEncoding):
            raise ValueError("a task needs a feature map and a row encoding")
        if self.encoding.has_levels and self.rows_are_public:
            raise ValueError("rows with weights need a private number of rows")

    def _in_short(self) -> str:
        number = "N" if self.rows_are_public else "at most"
        planned = in_short(self.rows_planned)
        return f"{in_short(self.feature_map)}, {number} = {planned}, measurement={in_short(self.measurement)}"

    @functools.cached_property
    def digest(self) -> str:
        """A SHA-256 digest of the map, the encoding and the planned rows, in hexadecimal digits.

        It does not depend on the run and the name of the measurement.
        """
        document = {name: value for name, value in self.to_json().items() if name not in ("run", "measurement")}
        return hashlib.sha256(json.dumps(document, sort_keys=True, allow_nan=False).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The task as plain JSON.

        Raises:
          TypeError: the map is not of a class that is registered as public.
        """
        arrays: dict[str, np.ndarray] = {}
        tree = encode(self.feature_map, arrays, "map")
        values = (
            *(_VERSION, self.run, self.measurement, self.rows_planned, self.rows_are_public, tree),
            *({name: _array_to_json(array) for name, array in arrays.items()}, self.encoding.kind),
            self.encoding.to_json(),
        )
        return dict(zip(_FIELDS, values, strict=True))

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Task:
        """The inverse of :meth:`to_json`.

        The modules that define the map and the encoding have to be imported before: ``kme_jax.table`` for tables.

        Raises:
          ValueError: the document is not valid, or the map or the encoding is not known.
        """
        if not isinstance(document, dict) or set(document) != set(_FIELDS):
            raise ValueError("it is no task of partial sums")
        if document["version"] != _VERSION:
            raise ValueError(f"the task has version {said(document['version'])}, expected {_VERSION}")
        encoding = encoding_of(document["encoding"])
        try:
            arrays = {name: _array_of_json(entry) for name, entry in document["arrays"].items()}
            feature_map: Any = decode(document["map"], arrays, FeatureMap)
            rows = encoding.from_json(document["rows"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the task is damaged, or was edited ({type(error).__name__})") from error
        names = ("rows_planned", "rows_are_public", "measurement", "run")
        return cls(feature_map, rows, *(document[name] for name in names))


def _array_to_json(array: np.ndarray) -> dict[str, Any]:
    array = np.asarray(array)
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    content = base64.b64encode(array.tobytes()).decode()
    return {"type": array.dtype.name, "shape": list(array.shape), "base64": content}


def _array_of_json(entry: dict[str, Any]) -> np.ndarray:
    if entry["type"] not in _TYPES:
        raise ValueError("the task has an array of an unknown type")
    kind = np.dtype(entry["type"]).newbyteorder("<")
    array = np.frombuffer(base64.b64decode(entry["base64"], validate=True), kind)
    return array.reshape(entry["shape"]).astype(kind.newbyteorder("="))
