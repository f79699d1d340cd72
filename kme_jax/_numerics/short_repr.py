"""Short texts of objects for notebooks, shells and logs. They show sizes of arrays, and never the values in arrays.

:func:`short_repr` is a class decorator; ``pytree_dataclass`` and ``storable`` apply it too. A class may have a method
``_in_short``, which returns what stands between the parentheses. Without it, the fields stand there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

_C = TypeVar("_C", bound=type)

MAX_LENGTH = 600  # letters of a text
_DETAILS = ((3, 8), (2, 6), (2, 3), (1, 3), (0, 2))  # levels of nested objects, and items of a sequence: most first
_GENERATED = (dataclasses.__file__, reprlib.__file__)  # where the ``repr`` of dataclasses comes from
_MAX_TEXT = 60  # letters of a text within an object
_MAX_DIGITS = 8  # of a float


def short_repr(cls: _C) -> _C:
    """Class decorator: gives a dataclass or a named tuple a short ``repr``. One that a person has written is kept."""
    written: Any = cls.__repr__
    file = getattr(getattr(written, "__code__", None), "co_filename", None)
    if written is object.__repr__ or file in _GENERATED or hasattr(cls, "_fields"):
        cls.__repr__ = _repr  # pyright: ignore[reportAttributeAccessIssue]  # pyright takes it for a method of an object
    return cls


def _repr(self: Any) -> str:
    text = ""
    for levels, items in _DETAILS:
        text = _object(self, levels, items)
        if len(text) <= MAX_LENGTH:
            return text
    return f"{text[: MAX_LENGTH - 3]}..."


def in_full(value: Any) -> str:
    """A public object with all its fields, as Python writes dataclasses, or with the words of its class.

    Privacy statements and digests of settings use it, so it must not change. It shows every digit, and
    cuts nothing.
    """
    if type(value).__repr__ is _repr:
        return f"{type(value).__qualname__}({_own_words(value) or ', '.join(_fields_in_full(value))})"
    if type(value) is tuple:
        return f"({', '.join(map(in_full, value))}{',' * (len(value) == 1)})"
    return repr(value)


def _fields_in_full(value: Any) -> Iterable[str]:
    return (f"{name}={in_full(getattr(value, name))}" for name in _field_names(value))


def _field_names(value: Any) -> list[str]:
    if isinstance(value, tuple):
        return list(value._fields)  # pyright: ignore[reportAttributeAccessIssue]  # a named tuple
    return [field.name for field in dataclasses.fields(value) if field.repr]


def _own_words(value: Any) -> str:
    """What the class says of itself; empty if it says nothing.

    An object that is not valid must still have a text: JAX builds trees of placeholders, and debuggers show objects
    that are not complete."""
    try:
        return value._in_short() if hasattr(type(value), "_in_short") else ""
    except Exception:
        return ""


def _object(value: Any, levels: int, items: int) -> str:
    name = type(value).__qualname__
    words = _own_words(value)
    if words:
        return f"{name}({words})"
    names = [field for field in _field_names(value) if hasattr(value, field)]
    return f"{name}({', '.join(f'{field}={_text(getattr(value, field), levels - 1, items)}' for field in names)})"


def in_short(value: Any) -> str:
    """Any value as text within another text. Of an array, the type and the shape."""
    return _text(value, 0, _DETAILS[-1][1])


def _text(value: Any, levels: int, items: int) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _array(value)
    if isinstance(value, float):
        text = repr(float(value))
        return text if len(text) <= _MAX_DIGITS else f"{float(value):.6g}"
    if isinstance(value, str | os.PathLike):
        value = str(value)
        return repr(value if len(value) <= _MAX_TEXT else f"{value[: _MAX_TEXT - 3]}...")
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, int):
        return repr(int(value)) if abs(value) < 10**30 else "a large int"
    if type(value).__repr__ is _repr:
        short = levels > 0 or hasattr(type(value), "_in_short")
        return _object(value, levels, items) if short else f"{type(value).__qualname__}(...)"
    if isinstance(value, Mapping):
        pairs = (f"{_text(key, 0, items)}: {_text(value[key], levels - 1, items)}" for key in value)
        return f"{{{_items(pairs, value, items)}}}"
    if isinstance(value, list | tuple | set | frozenset):
        return f"({_items((_text(item, levels - 1, items) for item in value), value, items)})"
    if hasattr(value, "num_rows") and hasattr(value, "num_columns"):  # a pyarrow table
        return f"table[{value.num_rows} rows, {value.num_columns} columns]"
    return f"<{type(value).__qualname__}>"


def _items(texts: Iterable[str], of: Any, most: int) -> str:
    shown = [text for text, _ in zip(texts, range(most), strict=False)]
    more = len(of) - len(shown)
    return ", ".join([*shown, *[f"... {more} more"] * (more > 0)])


def _array(value: Any) -> str:
    """Type and shape of an array, as in f64[1000, 2]. A single number is shown, if it has a value yet."""
    if tuple(value.shape) == ():
        with contextlib.suppress(Exception):  # a tracer has no value, and neither has a random key
            return _text(value.item(), 0, 0)
    name = str(getattr(value.dtype, "name", value.dtype))
    for word, letter in (("float", "f"), ("uint", "u"), ("int", "i"), ("bool", "b"), ("complex", "c")):
        if name.startswith(word):
            name = letter + name.removeprefix(word)
            break
    return f"{name}[{', '.join(map(str, value.shape))}]"
