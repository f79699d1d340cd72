"""Public objects as JSON and arrays: feature maps, kernels, proposals, mechanisms. No pickle."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from kme_jax.bounds import Bounds
from kme_jax.feature_maps.fourier import FourierMap
from kme_jax.feature_maps.labelled import LabelledMap, MixedMap
from kme_jax.feature_maps.lattice import LatticeMap
from kme_jax.feature_maps.subspace import SubspaceMap
from kme_jax.feature_maps.table import Block, Grid, TableMap
from kme_jax.kernels import Gaussian, GaussianSum, Laplacian, Matern32, Matern52, Product, Sum
from kme_jax.privacy.mechanisms import Composition, Mechanism
from kme_jax.proposals import NormalProposal
from kme_jax.synthesis.generator import GeneratorReport, Rows
from kme_jax.synthesis.networks import MLP, Convolutional, SmoothImages
from kme_jax.synthesis.relaxed import Leaves, RelaxedRows

_CLASSES = {
    cls.__name__: cls
    for cls in (
        Block,
        Bounds,
        Composition,
        Convolutional,
        FourierMap,
        Gaussian,
        GaussianSum,
        GeneratorReport,
        Grid,
        LabelledMap,
        Laplacian,
        LatticeMap,
        Leaves,
        MLP,
        Matern32,
        Matern52,
        Mechanism,
        MixedMap,
        NormalProposal,
        Product,
        RelaxedRows,
        Rows,
        SmoothImages,
        SubspaceMap,
        Sum,
        TableMap,
    )
}


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
    if dataclasses.is_dataclass(value) and type(value) is _CLASSES.get(type(value).__name__):
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


def decode(value: Any, arrays: Any) -> Any:
    """The inverse of :func:`encode`.

    Raises:
      ValueError: not what :func:`encode` makes.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if not isinstance(value, dict):
        raise ValueError(f"unexpected {type(value).__name__}")
    if set(value) == {"float"}:
        return float.fromhex(value["float"])
    if set(value) == {"tuple"}:
        return tuple(decode(item, arrays) for item in value["tuple"])
    if set(value) == {"array"}:
        return arrays[value["array"]]
    if set(value) != {"class", "fields"} or value["class"] not in _CLASSES:
        raise ValueError(f"unknown kind of object: {value.get('class', sorted(value))}")
    cls = _CLASSES[value["class"]]
    if set(value["fields"]) != {field.name for field in dataclasses.fields(cls)}:
        raise ValueError(f"{value['class']} has other fields")
    return cls(**{name: decode(field, arrays) for name, field in value["fields"].items()})
