"""Dataclasses as JAX pytrees. Pytrees of different classes are never confused."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

import jax

from kme_jax._numerics.short_repr import short_repr

_C = TypeVar("_C", bound=type)


def pytree_dataclass(cls: _C) -> _C:
    """Decorator: registers a dataclass as a pytree. Fields with ``metadata={"static": True}`` are not traced.

    The class also gets a short ``repr``, unless it has written its own. Checks in ``__post_init__`` are for objects
    that a caller builds. A pytree that JAX builds, such as a gradient, may have values that they refuse.

    It does the same as ``jax.tree_util.register_dataclass``, but the class is in the auxiliary data. In JAX 0.10 the
    structures of two dataclasses registered by ``register_dataclass`` are equal if the structures of their fields are
    equal, even for different classes (whose hashes differ). So a function that was compiled for a Gaussian kernel could
    run with the bandwidth of a Laplacian kernel, depending on the hash table of the cache.
    """
    names = {True: [], False: []}
    for field in dataclasses.fields(cls):
        names[bool(field.metadata.get("static"))].append(field.name)
    static, traced = names[True], names[False]

    def auxiliary(value):
        return (cls, *(getattr(value, name) for name in static))

    def flatten(value):
        return [getattr(value, name) for name in traced], auxiliary(value)

    def flatten_with_keys(value):
        return [(jax.tree_util.GetAttrKey(name), getattr(value, name)) for name in traced], auxiliary(value)

    def unflatten(aux, children):
        values = dict(zip(static, aux[1:], strict=True)) | dict(zip(traced, children, strict=True))
        try:
            return cls(**values)
        except ValueError:  # JAX also builds gradients, batches and states of optimisers, which may have any values
            value = object.__new__(cls)
            for name in values:
                object.__setattr__(value, name, values[name])
            return value

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return short_repr(cls)
