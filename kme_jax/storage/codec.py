"""Public objects as JSON and arrays: feature maps, kernels, proposals, mechanisms. No pickle.

What is read is checked field by field against the types of the class, and then by the method ``validate`` of the class,
if it has one. A class is found in ``kme_jax._numerics.registry``, never by a name from the file.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from kme_jax import domain, feature_maps, kernels  # noqa: F401  # their classes are in the registry then
from kme_jax._numerics.registry import entry_of, is_storable
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.privacy.mechanisms import Mechanism, NoisyEmbedding

_MAX_TEXT = 100_000  # letters
_MAX_INTEGER = 2**62


def encode(value: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
    """A value as plain JSON, with its arrays put into ``arrays`` under names that begin with ``name``.

    Raises:
      TypeError: a value of a kind that is not known to be public.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, tuple):
        return {"tuple": [encode(item, arrays, f"{name}.{i}") for i, item in enumerate(value)]}
    if dataclasses.is_dataclass(value) and is_storable(value):
        fields = {f.name: encode(getattr(value, f.name), arrays, f"{name}.{f.name}") for f in dataclasses.fields(value)}
        return {"class": type(value).__name__, "fields": fields}
    array = np.asarray(value) if hasattr(value, "dtype") else None
    if array is None or array.dtype.kind not in "fiu":
        raise TypeError(f"{name}: {type(value).__name__} cannot be written")
    if array.ndim == 0:
        return encode(array.item(), arrays, name)
    same = next((other for other, known in arrays.items() if known is array), name)
    arrays[same] = array
    return {"array": same}


def decode(value: Any, arrays: Mapping[str, np.ndarray], expected: Any) -> Any:
    """The inverse of :func:`encode`.

    Args:
      value: plain JSON.
      arrays: by their names.
      expected: the type, as in the annotation of a field.

    Raises:
      ValueError: it is not what :func:`encode` makes of a valid value of this type.
    """
    origin, parts = typing.get_origin(expected), typing.get_args(expected)
    if origin in (typing.Union, types.UnionType):
        return _one_of(value, arrays, parts)
    if origin is typing.Literal:
        if not any(type(value) is type(part) and value == part for part in parts):
            raise ValueError(f"expected one of {', '.join(map(str, parts))}")
        return value
    if origin is tuple:
        return _tuple(value, arrays, parts)
    if expected in (np.ndarray, jax.Array):
        return _array(value, arrays)
    if expected is float:
        return _float(value)
    if expected in (bool, int, str, types.NoneType):
        return _plain(value, expected)
    return _object(value, arrays, expected)


def encode_embedding(embedding: NoisyEmbedding, arrays: dict[str, np.ndarray], name: str) -> dict[str, Any]:
    """A noisy embedding, of which each field is encoded by itself, see :func:`encode`."""
    parts = {field.name: getattr(embedding, field.name) for field in dataclasses.fields(embedding)}
    return {part: encode(value, arrays, f"{name}.{part}") for part, value in parts.items()}


def decode_embedding(value: Any, arrays: Mapping[str, np.ndarray]) -> NoisyEmbedding:
    """The inverse of :func:`encode_embedding`. It is not checked against a budget.

    Raises:
      ValueError: as :func:`decode`.
    """
    names = {"feature_map": FeatureMap, "coordinates": np.ndarray, "mechanism": Mechanism}
    if not isinstance(value, dict) or set(value) != set(names):
        raise ValueError("expected a noisy embedding")
    return NoisyEmbedding(**{name: decode(value[name], arrays, expected) for name, expected in names.items()})


def _one_of(value: Any, arrays: Mapping[str, np.ndarray], parts: tuple[Any, ...]) -> Any:
    errors = []
    for part in parts:
        try:
            return decode(value, arrays, part)
        except ValueError as error:
            errors.append(error)
    raise errors[0]


def _tuple(value: Any, arrays: Mapping[str, np.ndarray], parts: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(value, dict) or set(value) != {"tuple"} or not isinstance(value["tuple"], list):
        raise ValueError("expected a tuple")
    items = value["tuple"]
    parts = parts[:1] * len(items) if parts[-1] is ... else parts
    if len(items) != len(parts):
        raise ValueError(f"expected {len(parts)} items, got {len(items)}")
    return tuple(decode(item, arrays, part) for item, part in zip(items, parts, strict=True))


def _array(value: Any, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    if not isinstance(value, dict) or set(value) != {"array"} or not isinstance(value["array"], str):
        raise ValueError("expected an array")
    array = arrays[value["array"]]
    if array.dtype.kind not in "fiu":
        raise ValueError("expected an array of numbers")
    return array


def _float(value: Any) -> float:
    if type(value) is int and abs(value) < _MAX_INTEGER:
        return value
    if not isinstance(value, dict) or set(value) != {"float"} or not isinstance(value["float"], str):
        raise ValueError("expected a number")
    number = float.fromhex(value["float"])
    if math.isnan(number) or number.hex() != value["float"]:
        raise ValueError("expected a number")
    return number


def _plain(value: Any, expected: type) -> Any:
    if type(value) is not expected:
        raise ValueError(f"expected {expected.__name__}, got {type(value).__name__}")
    if (expected is int and abs(value) >= _MAX_INTEGER) or (expected is str and len(value) > _MAX_TEXT):
        raise ValueError("a number or a text is too long")
    return value


def _object(value: Any, arrays: Mapping[str, np.ndarray], expected: Any) -> Any:
    if not isinstance(value, dict) or set(value) != {"class", "fields"} or not isinstance(value["class"], str):
        raise ValueError(f"expected a {expected.__name__}")
    entry = entry_of(value["class"])
    if entry is None or not issubclass(entry.cls, expected):
        raise ValueError(f"expected a {expected.__name__}, got {value['class']!r:.50}")
    cls = entry.cls
    hints, fields = _hints(cls), value["fields"]
    names = {field.name for field in dataclasses.fields(cls)}
    if not isinstance(fields, dict):
        raise ValueError(f"{cls.__name__} has other fields")
    fields = {(name if name in names else entry.former_fields.get(name, name)): part for name, part in fields.items()}
    if set(fields) != names or len(fields) != len(value["fields"]):
        raise ValueError(f"{cls.__name__} has other fields")
    decoded = {}
    for name, field in fields.items():
        try:
            decoded[name] = decode(field, arrays, hints[name])
        except ValueError as error:
            raise ValueError(f"{cls.__name__}.{name}: {error}") from error
    made = cls(**decoded)
    if hasattr(made, "validate"):
        made.validate()
    return made


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)
