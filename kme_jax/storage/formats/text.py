"""How the text of a .csv file is written: its encoding, and what separates its cells.

A file in another encoding than UTF-8 is converted while it is read, so memory does not depend on its length. Bytes that
cannot be decoded become a byte that is no UTF-8. Their cell is then unreadable, and nothing else changes.

Privacy: one cell must not decide how others are read, or a private cell could raise an error. So encodings in which
bytes of one cell change the meaning of later ones are refused, and so are separators that are a part of letters.
"""

from __future__ import annotations

import codecs
import dataclasses
import io
from typing import IO, Any

from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.text import said

UTF_8 = "utf-8"
NO_LETTER = b"\xff"
"""Stands for a byte that cannot be decoded. It is no part of UTF-8."""
BLOCK_BYTES = 2**20
_UNREADABLE, _UNREADABLE_UNITS = "kme_jax.unreadable", "kme_jax.unreadable_units"
_QUOTE, _ENDS = '"', "\r\n"
# With a state that goes on behind a cell, or with escapes that a cell could write commas and line breaks with.
_STATEFUL = ("utf_7", "hz", "iso2022", "unicode_escape", "raw_unicode_escape", "punycode", "idna")


def _unreadable(error: UnicodeError) -> tuple[str | bytes, int]:
    """A handler of errors: a byte that is no UTF-8 stands for a byte or letter that cannot be decoded or encoded.

    Decoding goes on at the next byte, so half of a letter takes no comma with it. Each letter that cannot be encoded is
    a byte of its own, so the result does not depend on where blocks end.
    """
    if isinstance(error, UnicodeDecodeError):
        return "\udcff", error.start + 1
    if isinstance(error, UnicodeEncodeError):
        return NO_LETTER * (error.end - error.start), error.end
    raise error


def _unreadable_units(error: UnicodeError) -> tuple[str | bytes, int]:
    """The same for encodings whose letters have two or four bytes: decoding goes on at the next unit."""
    if isinstance(error, UnicodeDecodeError):
        return "\udcff", error.end
    raise error


codecs.register_error(_UNREADABLE, _unreadable)
codecs.register_error(_UNREADABLE_UNITS, _unreadable_units)


@short_repr
@dataclasses.dataclass(frozen=True)
class TextOptions:
    """How the text of a file is written.

    Attributes:
      encoding: the name of one of Python's text encodings; None for UTF-8.
      separator: the character between cells; None for what is most frequent in the header line, or for commas if there
        is no header line.
      header: whether the first line has the names of the columns. Without them, the columns are x1, x2 and so on.
      width: how many cells a row has, if there is no header line; None for the number of the first row.

    Raises:
      ValueError: there is no such encoding, it is not one of text, one cell could change how others are read in it, or
        the separator is not a single character that can separate cells.
    """

    encoding: str | None = None
    separator: str | None = None
    header: bool = True
    width: int | None = None

    def __post_init__(self):
        separator = self.separator
        if self.encoding is not None:
            object.__setattr__(self, "encoding", _checked_encoding(self.encoding))
        if separator is None:
            return
        if not isinstance(separator, str) or len(separator) != 1:
            raise ValueError(f"separator: expected a single character, such as ; or a tab, got {said(separator)}")
        if not separator.isascii() or separator.isalnum() or separator in ("\0", _QUOTE, *_ENDS):
            raise ValueError(f"separator: {said(separator)} cannot separate cells: take a sign such as ; or a tab")

    @property
    def given(self) -> str | None:
        """What was said of the text; None if nothing was."""
        return "encoding" if self.encoding is not None else None if self.separator is None else "separator"

    @property
    def name(self) -> str:
        """The encoding, for errors."""
        return "UTF-8" if self.is_utf_8 else str(self.encoding)

    @property
    def is_utf_8(self) -> bool:
        """Whether the bytes of the file are read as they are."""
        return self.encoding in (None, UTF_8)

    def in_utf_8(self, file: IO[bytes], block_bytes: int = BLOCK_BYTES) -> IO[bytes]:
        """The bytes of a file in UTF-8, without a copy of the file. They do not depend on the size of blocks.

        Reading raises UnicodeError if the file does not begin as one of this encoding does.
        """
        if self.encoding is None or self.is_utf_8:
            return file
        handler = _UNREADABLE if len("a".encode(self.encoding)) == 1 else _UNREADABLE_UNITS
        decoder = codecs.getincrementaldecoder(self.encoding)(handler)
        return io.BufferedReader(_Recoded(file, decoder, block_bytes), BLOCK_BYTES)

    def keeps(self, separator: str) -> bool:
        """Whether no bytes before a separator, a quote or a line break can take it for a part of a letter.

        In some encodings of Chinese, Japanese and Korean, the byte of a bar is also the second half of letters.
        """
        return self.encoding is None or all(_is_kept(self.encoding, sign) for sign in (separator, _QUOTE, *_ENDS))


AS_USUAL = TextOptions()
"""UTF-8, with a header line that says what separates cells."""


def _checked_encoding(encoding: Any) -> str:
    """The name that Python has for an encoding."""
    if not isinstance(encoding, str):
        raise ValueError(f"encoding: expected a name such as latin-1 or utf-16, got {said(encoding)}")
    try:
        "a".encode(encoding)
        name = codecs.lookup(encoding).name
    except (LookupError, ValueError):  # a name may have null bytes, or may not be text
        raise ValueError(
            f"encoding: Python has no text encoding {said(encoding)}; it has utf-8, latin-1, cp1252, utf-16 and others"
        ) from None
    if name.replace("-", "_").startswith(_STATEFUL):
        raise ValueError(f"encoding: in {name} one cell can change how others are read; convert the file to UTF-8")
    return UTF_8 if name == "utf-8-sig" else name


def _is_kept(encoding: str, sign: str) -> bool:
    try:
        byte = sign.encode(encoding)
    except UnicodeError:
        return False
    if len(byte) > 1:  # all letters have two or four bytes
        return True
    return all((bytes([before]) + byte).decode(encoding, _UNREADABLE).endswith(sign) for before in range(256))


class _Recoded(io.RawIOBase):
    """The bytes of a file in another encoding, in UTF-8."""

    def __init__(self, file: IO[bytes], decoder: codecs.IncrementalDecoder, block_bytes: int):
        self._file, self._decoder, self._block_bytes = file, decoder, block_bytes
        self._ended, self._rest = False, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not len(self._rest) and not self._ended:
            block = self._file.read(self._block_bytes)
            self._ended = not block
            text = self._decoder.decode(block, self._ended)
            while self._ended and (more := self._decoder.decode(b"", True)):  # behind half a letter at the very end
                text += more
            self._rest = memoryview(text.encode(UTF_8, _UNREADABLE))
        number = min(len(buffer), len(self._rest))
        buffer[:number], self._rest = self._rest[:number], self._rest[number:]
        return number
