"""The input of ``synrepl append``: numbered lines, each parsed as a fact."""

from __future__ import annotations

import os
import select
from collections import deque
from typing import NamedTuple

import msgspec

from synrepl.core.errors import InputError
from synrepl.streams.definition import Stream
from synrepl.streams.rows import BadRow, MalformedRow, RowCodec

#: The longest line that is read, in bytes.
MAX_LINE = 16 * 2**20

_CHUNK = 256 * 1024


class BadLine(InputError):
    """line {number}: {reason}"""


class Line(NamedTuple):
    """One line that is not blank; numbers begin at 1 and count blank lines too."""

    number: int
    text: bytes


class LineReader:
    """Lines from a file descriptor: as many as are at hand, and never waiting for more than one.

    :ivar read: bytes read so far
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: deque[Line] = deque()
        self._waiting = 0  # bytes in them
        self._half = bytearray()
        self._number = 0
        self._fault: BadLine | None = None
        self._ended = False
        self.read = 0

    def at_hand(self, lines: int, size: int) -> list[Line]:
        """Wait for a line, then take what is there.

        :param lines: at most so many
        :param size: bytes; no further line once they are so many
        :returns: nothing at the end of the input
        :raises BadLine: a line is too long, and all before it have been taken
        """
        while not self._lines and not self._ended:
            self._fill()
        while len(self._lines) < lines and self._waiting < size and self._more_at_hand():
            self._fill()
        taken: list[Line] = []
        while self._lines and len(taken) < lines and size > 0:
            taken.append(self._lines.popleft())
            self._waiting -= len(taken[-1].text)
            size -= len(taken[-1].text)
        if not taken and self._fault is not None:
            raise self._fault
        return taken

    def _fill(self) -> None:
        self._readable(None)
        data = os.read(self._descriptor, _CHUNK)
        self.read += len(data)
        first, *others = data.split(b"\n")
        self._half += first
        for piece in others:
            self._complete()
            self._half += piece
        if not data:
            self._ended = True
            self._complete()
        elif len(self._half) > MAX_LINE:
            self._too_long()

    def _complete(self) -> None:
        """The line that has been collected has ended."""
        self._number += 1
        text = bytes(self._half)
        self._half.clear()
        if len(text) > MAX_LINE:
            self._too_long(self._number)
        elif self._fault is None and text.strip():
            self._lines.append(Line(self._number, text))
            self._waiting += len(text)

    def _too_long(self, number: int | None = None) -> None:
        self._ended = True
        self._half.clear()
        if self._fault is None:
            self._fault = BadLine(
                number=number or self._number + 1,
                reason=f"it is longer than {MAX_LINE} bytes; a line is one JSON array",
            )

    def _more_at_hand(self) -> bool:
        return not self._ended and self._readable(0)

    def _readable(self, timeout_s: float | None) -> bool:
        return bool(select.select([self._descriptor], [], [], timeout_s)[0])


class FactLine(NamedTuple):
    """A line that has been found to be a fact; ``rows`` is a JSON array of its rows."""

    number: int
    rows: bytes


class FactReader:
    """Reads lines as facts of one stream, with the checks that the master will make again."""

    def __init__(self, stream: Stream) -> None:
        self._codec = RowCodec(stream)

    def fact(self, line: Line) -> FactLine:
        """The fact of a line: a row, or an array of rows.

        :raises BadLine: it is neither
        """
        try:
            return FactLine(line.number, self._rows(line.text.strip()))
        except (BadRow, MalformedRow) as error:
            raise BadLine(number=line.number, reason=error) from None

    def _rows(self, text: bytes) -> bytes:
        try:
            self._check(text)
            return b"[%b]" % text
        except BadRow:
            rows = _arrays(text)
            if not rows:
                raise
        for index, row in enumerate(rows):
            try:
                self._check(row)
            except BadRow as error:
                inner = str(error.facts["path"]).removeprefix("$")
                raise BadRow(**{**error.facts, "path": f"$[{index}]{inner}"}) from None
        return text

    def _check(self, text: bytes) -> None:
        self._codec.check_storable(self._codec.decode(text))


def _arrays(text: bytes) -> list[bytes]:
    """The elements of an array of arrays; nothing when it is something else."""
    try:
        items = [bytes(item) for item in msgspec.json.decode(text, type=list[msgspec.Raw])]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    return items if all(item.startswith(b"[") for item in items) else []
