"""Bytes to lines, with a bound; and lines to chunks that many connections share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from synrepl.core.errors import InputError
from synrepl.wire.errors import RemoteProtocolError

#: What real peers accept, in bytes without the newline (a CR counts).
DEFAULT_LINE_LIMIT = 16_384

#: There is always a limit; this is the largest that can be set.
MAX_LINE_LIMIT = 2**26


class BadLineLimit(InputError):
    """a line limit of {limit!r} bytes is not possible: set 256 to 67108864"""


class LineTooLong(RemoteProtocolError):
    """Line length exceeded: more than {limit} bytes without a newline"""

    def __init__(self, *, limit: int, before: Sequence[bytes] = ()) -> None:
        super().__init__(limit=limit, before=before)
        #: The complete lines ahead of it.
        self.before = before


def check_limit(limit: int) -> int:
    """Return ``limit``, a line limit in bytes.

    :raises BadLineLimit: when it is none, or out of bounds
    """
    if type(limit) is not int or not 256 <= limit <= MAX_LINE_LIMIT:
        raise BadLineLimit(limit=limit)
    return limit


class LineSplitter:
    """Collects bytes, gives complete lines; keeps at most one line's worth of bytes.

    :param limit: the longest line that is accepted, in bytes without the newline
    """

    def __init__(self, limit: int = DEFAULT_LINE_LIMIT) -> None:
        self._limit = check_limit(limit)
        self._half = bytearray()

    @property
    def half(self) -> int:
        """How many bytes of an unfinished line are being kept."""
        return len(self._half)

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` completes, without their newlines.

        :raises LineTooLong: as soon as the bound is passed, newline or not. The
            bytes are gone then, and lines after the long one are not looked for.
        """
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines and self._half:
            if len(self._half) + len(lines[0]) > self._limit:
                raise self._too_long([])
            lines[0] = bytes(self._half + lines[0])
            self._half.clear()
        if len(data) > self._limit:
            for index, line in enumerate(lines):
                if len(line) > self._limit:
                    raise self._too_long(lines[:index])
        if len(self._half) + len(rest) > self._limit:
            raise self._too_long(lines)
        self._half += rest
        return lines

    def drop(self) -> int:
        """Forget the unfinished line; how many bytes that was."""
        dropped = len(self._half)
        self._half.clear()
        return dropped

    def _too_long(self, before: Sequence[bytes]) -> LineTooLong:
        self.drop()
        return LineTooLong(limit=self._limit, before=before)


@dataclass(frozen=True, slots=True)
class LineChunk:
    """Complete lines, encoded and measured once, to be sent to any number of peers.

    :ivar data: the lines, each with its newline
    :ivar lines: how many there are
    :ivar longest: bytes in the longest, without the newline
    """

    data: bytes
    lines: int
    longest: int

    @classmethod
    def of(cls, data: bytes) -> LineChunk:
        """Measure ``data``; what follows the last newline counts as a line too."""
        lines = data.split(b"\n")
        if not lines[-1]:
            lines.pop()
        return cls(data, len(lines), max(map(len, lines), default=0))
