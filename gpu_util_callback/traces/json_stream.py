"""Reads a JSON document of any size in bounded memory: one value of its big array at a time.

The values themselves are parsed by the standard library's C scanner, which is fed from a
window over the file. Numbers with a fraction are returned as their text, so that a time in
microseconds keeps all of its digits.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from gpu_util_callback.traces import limits

__all__ = ["BrokenJson", "Document"]

CHUNK = 1 << 20
# A single value larger than this is not an event; it would make the window as large as the file.
MAX_VALUE = 16 << 20
# Python refuses to parse an integer of more digits than this.
_MAX_DIGITS = 4_000

_GAP = re.compile(r"[ \t\r\n]*")
# Some profilers write a bare N/A for an unknown number.
_BARE = re.compile(r"(?<=[:\[,])(\s*)N/A(?=\s*[,}\]])")


class BrokenJson(Exception):
    """The document is truncated, or is not JSON."""


class Document:
    """A JSON object (or array) whose one large member is an array.

    Args:
        file: source of the (decompressed) bytes.
        big: the member to stream; a document that is an array itself is streamed whole.
        keep: the other members to keep; None = all.
        progress: called after each chunk.
        limit: maximum number of bytes; longer documents are refused.
    """

    def __init__(
        self,
        file: BinaryIO,
        big: str,
        keep: frozenset[str] | None = None,
        progress: Callable[[], None] | None = None,
        limit: int = limits.MAX_UNPACKED_JSON,
    ) -> None:
        self._limit = limit
        self.members: dict[str, Any] = {}  # known when `values` is exhausted
        self._keep = keep
        self._read = 0
        self._file = file
        self._big = big
        self._progress = progress
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        self._text = ""
        self._at = 0
        self._done = False
        self._bare = False
        decoder: Any = json.JSONDecoder(parse_float=str, strict=False)
        self._scan: Callable[[str, int], tuple[Any, int]] = decoder.scan_once
        patient: Any = json.JSONDecoder(parse_float=str, parse_int=_whole, strict=False)
        self._scan_any: Callable[[str, int], tuple[Any, int]] = patient.scan_once

    def _more(self) -> bool:
        """Drop the consumed text and append the next chunk; return False at the end of the file."""
        if self._done:
            return False
        # A value that does not fit yet: read as much again, so that retrying stays linear.
        data = self._file.read(max(CHUNK, len(self._text) - self._at))
        self._done = not data
        self._read += len(data)
        if self._read > self._limit:
            raise BrokenJson(f"it decompresses to more than {self._limit >> 20:,} MB")
        text = self._decode(data, self._done)
        if self._bare:
            text = _BARE.sub(r"\1null", text)
        self._text = self._text[self._at :] + text
        self._at = 0
        if len(self._text) > MAX_VALUE:
            raise BrokenJson(f"a value is larger than {MAX_VALUE >> 20} MB")
        if self._progress:
            self._progress()
        return True

    def _peek(self) -> str:
        """Return the next character that is not white space."""
        while True:
            self._at = _GAP.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                raise BrokenJson("it ends in the middle")

    def _expect(self, character: str) -> None:
        found = self._peek()
        if found != character:
            raise BrokenJson(f"{character!r} expected, {found!r} found")
        self._at += 1

    def _value(self) -> Any:
        """Return the whole value at the current position."""
        self._peek()
        scan = self._scan
        while True:
            try:
                value, end = scan(self._text, self._at)
            except (StopIteration, ValueError) as error:
                at = getattr(error, "pos", getattr(error, "value", None))
                if at is None and scan is not self._scan_any:  # an endless integer
                    scan = self._scan_any
                    continue
                if not self._bare and _BARE.search(self._text, self._at):
                    self._bare = True
                    head, tail = self._text[: self._at], self._text[self._at :]
                    self._text = head + _BARE.sub(r"\1null", tail)
                    continue
                # At the edge of the window the rest is not read yet; in its middle it is an error.
                edge = at is None or at >= len(self._text) - 16
                cut = "Unterminated" in str(error)
                if (edge or cut) and self._more():
                    continue
                raise BrokenJson(
                    "it ends in the middle" if edge or cut else f"not JSON: {error}"
                ) from None
            except RecursionError:
                raise BrokenJson("nested too deeply") from None
            # A number that touches the edge may continue behind it.
            if end >= len(self._text) and not isinstance(value, dict | list) and self._more():
                continue
            self._at = end
            return value

    def values(self) -> Iterator[Any]:
        """Yield the big array's values, one by one; afterwards `members` is complete.

        Raises: BrokenJson.
        """
        if self._peek() == "[":
            yield from self._array()
            return
        self._expect("{")
        if self._peek() == "}":
            return
        while True:
            key = self._value()
            if not isinstance(key, str):
                raise BrokenJson("a name expected")
            self._expect(":")
            if key == self._big and self._peek() == "[":
                yield from self._array()
            else:
                value = self._value()
                if self._keep is None or key in self._keep:
                    self.members[key] = value
            if self._peek() == "}":
                return
            self._expect(",")

    def _array(self) -> Iterator[Any]:
        self._expect("[")
        scan = self._scan
        first = True
        while True:
            # The common case in a few steps: a value, and a comma or white space behind it.
            text, at = self._text, self._at
            if not text.startswith("{", at):
                character = self._peek()
                if character == "]":  # Chrome allows a comma before it
                    self._at += 1
                    return
                if not first and character == ",":
                    raise BrokenJson("a comma too many")
            at = self._at
            try:
                value, self._at = scan(self._text, at)
            except (StopIteration, ValueError, RecursionError):
                value = self._value()
            else:
                if self._at >= len(self._text):  # a number may continue behind the edge
                    self._at = at
                    value = self._value()
            yield value
            first = False
            if self._text.startswith(",", self._at):
                self._at += 1
                continue
            following = self._peek()
            self._at += 1
            if following == "]":
                return
            if following != ",":
                raise BrokenJson(f"',' expected, {following!r} found")


def _whole(digits: str) -> int | str:
    """Return an integer; as text, like fractions, where it has too many digits."""
    return digits if len(digits) > _MAX_DIGITS else int(digits)
