"""Splits bytes into lines of limited length, and joins lines into chunks shared by connections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from synrepl.core.errors import InputError
from synrepl.wire.errors import RemoteProtocolError

#: The limit of real peers, in bytes without the newline; a CR counts.
DEFAULT_LINE_LIMIT = 16_384

#: The largest limit that can be set; there is always one.
MAX_LINE_LIMIT = 2**26


class BadLineLimit(InputError):
    """a line limit of {limit!r} bytes is not possible: set 256 to 67108864"""


class LineTooLong(RemoteProtocolError):
    """Line length exceeded: more than {limit} bytes without a newline"""

    def __init__(self, *, limit: int, before: Sequence[bytes] = ()) -> None:
        super().__init__(limit=limit, before=before)
        #: The complete lines before it.
        self.before = before


def check_limit(limit: int) -> int:
    """Return ``limit`` if it is a valid line limit in bytes.

    :raises BadLineLimit: it is no integer, or out of range
    """
    if type(limit) is not int or not 256 <= limit <= MAX_LINE_LIMIT:
        raise BadLineLimit(limit=limit)
    return limit


class LineSplitter:
    """Splits a byte stream into lines. It buffers at most one line.

    :param limit: maximum length of a line, in bytes without the newline
    """

    def __init__(self, limit: int = DEFAULT_LINE_LIMIT) -> None:
        self._limit = check_limit(limit)
        self._partial = bytearray()

    @property
    def partial_length(self) -> int:
        """Number of buffered bytes of an unfinished line."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes and return the completed lines, without their newlines.

        :raises LineTooLong: the limit is exceeded, with or without a newline. The
            buffer is dropped then, and so is everything after the long line.
        """
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines and self._partial:
            if len(self._partial) + len(lines[0]) > self._limit:
                raise self._too_long([])
            lines[0] = bytes(self._partial + lines[0])
            self._partial.clear()
        if len(data) > self._limit:
            for index, line in enumerate(lines):
                if len(line) > self._limit:
                    raise self._too_long(lines[:index])
        if len(self._partial) + len(rest) > self._limit:
            raise self._too_long(lines)
        self._partial += rest
        return lines

    def drop(self) -> int:
        """Drop the unfinished line; return its number of bytes."""
        dropped = len(self._partial)
        self._partial.clear()
        return dropped

    def _too_long(self, before: Sequence[bytes]) -> LineTooLong:
        self.drop()
        return LineTooLong(limit=self._limit, before=before)


@dataclass(frozen=True, slots=True)
class LineChunk:
    """Complete lines, encoded and measured once, for any number of peers.

    :ivar data: the lines, each with its newline
    :ivar lines: number of lines
    :ivar longest: bytes of the longest line, without the newline
    """

    data: bytes
    lines: int
    longest: int

    @classmethod
    def of(cls, data: bytes) -> LineChunk:
        """Measure ``data``. Bytes after the last newline count as a line."""
        lines = data.split(b"\n")
        if not lines[-1]:
            lines.pop()
        return cls(data, len(lines), max(map(len, lines), default=0))
