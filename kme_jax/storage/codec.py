"""Public objects as JSON and arrays: feature maps, kernels, proposals, mechanisms. No pickle.

Each field that is read is checked against its type in the class. An array must have the kind of numbers and the number
of dimensions of its annotation, and dimensions of one name must have one size within an object. The method ``validate``
of the class, if there is one, checks the object. A name of a class in a file is looked up in
``kme_jax._numerics.registry`` and nowhere else.
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
from jaxtyping import AbstractArray, jaxtyped

from kme_jax import domain, feature_maps, kernels  # noqa: F401  # importing them registers their classes
from kme_jax._numerics.registry import entry_of, is_storable
from kme_jax.privacy.mechanisms import NoisyEmbedding
from kme_jax.storage.folders import UnknownClassError

_MAX_TEXT = 100_000  # characters
_MAX_INTEGER = 2**62


def encode(value: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
    """A value as plain JSON. Its arrays are added to ``arrays``, under names that begin with ``name``.

    Raises:
      TypeError: the value is not of a class that is registered as public.
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
        remedy = ": decorate its class with kme_jax.storage.storable()" if dataclasses.is_dataclass(value) else ""
        raise TypeError(f"{name}: {type(value).__name__} cannot be written{remedy}")
    if array.ndim == 0:
        return encode(array.item(), arrays, name)
    same = next((other for other, known in arrays.items() if known is array), name)
    arrays[same] = array
    return {"array": same}


def decode(value: Any, arrays: Mapping[str, np.ndarray], expected: Any) -> Any:
    """The inverse of :func:`encode`.

    Args:
      value: plain JSON.
      arrays: by name.
      expected: the type, as in the annotation of a field.

    Raises:
      ValueError: :func:`encode` returns this for no valid value of the type.
    """
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin in (typing.Union, types.UnionType):
        return _one_of(value, arrays, arguments)
    if origin is typing.Literal:
        if not any(type(value) is type(literal) and value == literal for literal in arguments):
            raise ValueError(f"expected one of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple:
        return _tuple(value, arrays, arguments)
    if expected in (np.ndarray, jax.Array):
        return _array(value, arrays)
    if isinstance(expected, type) and issubclass(expected, AbstractArray):
        return _array_of_shape(value, arrays, expected)
    if expected is float:
        return _float(value)
    if expected in (bool, int, str, types.NoneType):
        return _plain(value, expected)
    return _object(value, arrays, expected)


def encode_embedding(embedding: NoisyEmbedding, arrays: dict[str, np.ndarray], name: str) -> dict[str, Any]:
    """A noisy embedding as plain JSON: each field is encoded by itself, see :func:`encode`."""
    fields = {field.name: getattr(embedding, field.name) for field in dataclasses.fields(embedding)}
    return {field: encode(value, arrays, f"{name}.{field}") for field, value in fields.items()}


def decode_embedding(value: Any, arrays: Mapping[str, np.ndarray]) -> NoisyEmbedding:
    """The inverse of :func:`encode_embedding`. The embedding is not yet checked against a budget.

    Raises:
      ValueError: as for :func:`decode`.
    """
    hints = _hints(NoisyEmbedding)
    if not isinstance(value, dict) or set(value) != set(hints):
        raise ValueError("expected a noisy embedding")
    return NoisyEmbedding(**{name: decode(value[name], arrays, expected) for name, expected in hints.items()})


def _one_of(value: Any, arrays: Mapping[str, np.ndarray], alternatives: tuple[Any, ...]) -> Any:
    errors = []
    for expected in alternatives:
        try:
            return decode(value, arrays, expected)
        except ValueError as error:
            errors.append(error)
    raise errors[0]


def _tuple(value: Any, arrays: Mapping[str, np.ndarray], expected: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(value, dict) or set(value) != {"tuple"} or not isinstance(value["tuple"], list):
        raise ValueError("expected a tuple")
    items = value["tuple"]
    expected = expected[:1] * len(items) if expected[-1] is ... else expected
    if len(items) != len(expected):
        raise ValueError(f"expected {len(expected)} items, got {len(items)}")
    return tuple(decode(item, arrays, kind) for item, kind in zip(items, expected, strict=True))


def _array(value: Any, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    if not isinstance(value, dict) or set(value) != {"array"} or not isinstance(value["array"], str):
        raise ValueError("expected an array")
    array = arrays[value["array"]]
    if array.dtype.kind not in "fiu":
        raise ValueError("expected an array of numbers")
    return array


def _array_of_shape(value: Any, arrays: Mapping[str, np.ndarray], expected: type[AbstractArray]) -> np.ndarray:
    array = _array(value, arrays)
    # The class may hold an array of JAX. A file holds one of NumPy.
    if not isinstance(array, expected.dtype[np.ndarray, expected.dim_str]):
        shape = ", ".join(expected.dim_str.split())
        raise ValueError(f"expected {expected.dtype.__name__} [{shape}], got {array.dtype} {list(array.shape)}")
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
    if entry is None:
        raise UnknownClassError(
            f"no class {value['class']!r:.50} is known here; if it is your own, import the module that defines it"
        )
    if not issubclass(entry.cls, expected):
        raise ValueError(f"expected a {expected.__name__}, got {value['class']!r:.50}")
    cls = entry.cls
    hints, fields = _hints(cls), value["fields"]
    names = {field.name for field in dataclasses.fields(cls)}
    if not isinstance(fields, dict):
        raise ValueError(f"{cls.__name__} has other fields")
    fields = {(name if name in names else entry.former_fields.get(name, name)): field for name, field in fields.items()}
    complete = names - set(entry.added_fields) <= set(fields) <= names
    if not complete or len(fields) != len(value["fields"]):
        raise ValueError(f"{cls.__name__} has other fields")
    decoded = {}
    with jaxtyped("context"):  # dimensions of one name have one size within this object
        for name, field in fields.items():
            try:
                decoded[name] = decode(field, arrays, hints[name])
            except ValueError as error:
                raise ValueError(f"{cls.__name__}.{name}: {error}") from error
    instance = cls(**decoded)
    if hasattr(instance, "validate"):
        instance.validate()
    return instance


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)
