"""The registry of classes that a folder may hold. Only these are written, and only these are created on reading."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kme_jax._numerics.short_repr import short_repr

_C = TypeVar("_C", bound=type)


@short_repr
@dataclasses.dataclass(frozen=True)
class Entry:
    """A class of the registry.

    Attributes:
      cls: the class.
      former_fields: {name of a field in earlier versions: its present name}.
      added_fields: names of fields that earlier versions did not have. If one is absent, its default holds.
    """

    cls: type
    former_fields: Mapping[str, str]
    added_fields: tuple[str, ...]


_ENTRIES: dict[str, Entry] = {}


def storable(
    *,
    former_name: str | None = None,
    former_fields: Mapping[str, str] | None = None,
    added_fields: tuple[str, ...] = (),
) -> Callable[[_C], _C]:
    """Class decorator: values of this frozen dataclass are public, and may be written to the folder of a release.

    The class is stored under its own name. Its fields need annotations that ``kme_jax.storage.codec.decode`` supports.
    A method ``validate``, if there is one, is called on each value that was read.

    Args:
      former_name: the name under which earlier versions stored the class.
      former_fields: {name of a field in earlier versions: its present name}.
      added_fields: names of fields with a default that earlier versions did not have.

    Raises:
      ValueError: another class is stored under this name.
    """

    def register(cls: _C) -> _C:
        entry = Entry(cls, dict(former_fields or {}), added_fields)
        for name in filter(None, (cls.__name__, former_name)):
            known = _ENTRIES.get(name)
            if known is not None and f"{known.cls.__module__}.{known.cls.__qualname__}" != (
                f"{cls.__module__}.{cls.__qualname__}"
            ):
                raise ValueError(f"{name}: a class of this name is stored already, {known.cls.__module__}.{name}")
            _ENTRIES[name] = entry
        return short_repr(cls)

    return register


def entry_of(name: str) -> Entry | None:
    """The class that is stored under a name, or None."""
    return _ENTRIES.get(name)


def is_storable(value: Any) -> bool:
    """Whether the class of a value is in the registry. A base class does not count."""
    entry = _ENTRIES.get(type(value).__name__)
    return entry is not None and entry.cls is type(value)
