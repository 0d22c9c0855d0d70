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
    """A line that is not blank; numbers start at 1 and count blank lines, too."""

    number: int
    text: bytes


class LineReader:
    """Reads lines from a file descriptor: all that are available, waiting only for the first.

    :ivar read: bytes read so far
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: deque[Line] = deque()
        self._queued_bytes = 0
        self._partial = bytearray()
        self._number = 0
        self._fault: BadLine | None = None
        self._ended = False
        self.read = 0

    def take_available(self, lines: int, size: int) -> list[Line]:
        """Wait for a line, then take all that are available.

        :param lines: the maximum number of lines
        :param size: no further line is taken once they have this many bytes
        :returns: the lines; empty at the end of the input
        :raises BadLine: the next line is too long; all lines before it have been taken
        """
        while not self._lines and not self._ended:
            self._fill()
        while len(self._lines) < lines and self._queued_bytes < size and self._has_more():
            self._fill()
        taken: list[Line] = []
        while self._lines and len(taken) < lines and size > 0:
            taken.append(self._lines.popleft())
            self._queued_bytes -= len(taken[-1].text)
            size -= len(taken[-1].text)
        if not taken and self._fault is not None:
            raise self._fault
        return taken

    def _fill(self) -> None:
        self._readable(None)
        data = os.read(self._descriptor, _CHUNK)
        self.read += len(data)
        first, *others = data.split(b"\n")
        self._partial += first
        for piece in others:
            self._complete()
            self._partial += piece
        if not data:
            self._ended = True
            self._complete()
        elif len(self._partial) > MAX_LINE:
            self._too_long()

    def _complete(self) -> None:
        """Queue the line that was collected."""
        self._number += 1
        text = bytes(self._partial)
        self._partial.clear()
        if len(text) > MAX_LINE:
            self._too_long(self._number)
        elif self._fault is None and text.strip():
            self._lines.append(Line(self._number, text))
            self._queued_bytes += len(text)

    def _too_long(self, number: int | None = None) -> None:
        self._ended = True
        self._partial.clear()
        if self._fault is None:
            self._fault = BadLine(
                number=number or self._number + 1,
                reason=f"it is longer than {MAX_LINE} bytes; a line is one JSON array",
            )

    def _has_more(self) -> bool:
        return not self._ended and self._readable(0)

    def _readable(self, timeout_s: float | None) -> bool:
        return bool(select.select([self._descriptor], [], [], timeout_s)[0])


class FactLine(NamedTuple):
    """A line that was parsed as a fact; ``rows`` is a JSON array of its rows."""

    number: int
    rows: bytes


class FactReader:
    """Parses lines as facts of one stream, with the same checks as the master."""

    def __init__(self, stream: Stream) -> None:
        self._codec = RowCodec(stream)

    def fact(self, line: Line) -> FactLine:
        """Parse a line: a row, or an array of rows.

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
    """The elements of an array of arrays; empty for anything else."""
    try:
        items = [bytes(item) for item in msgspec.json.decode(text, type=list[msgspec.Raw])]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    return items if all(item.startswith(b"[") for item in items) else []
