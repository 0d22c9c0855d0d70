"""Assembles facts of several rows from RDATA lines.

Source: "TCP replication, Synapse 1.43", 'Overview': of rows that share a token, all but
the last are sent with ``batch`` in place of the token.
"""

from __future__ import annotations

from typing import NamedTuple

from synrepl.wire.commands import Position, Rdata
from synrepl.wire.errors import RemoteProtocolError

DEFAULT_MAX_ROWS = 100_000
DEFAULT_MAX_BYTES = 2**28


class BatchTooLarge(RemoteProtocolError):
    """the unfinished batches hold more than {limit} {unit}; the last row was of stream
    {stream!r}, writer {writer!r}: a line with a token is missing, or the limit is too
    low for this sender's facts"""


class RowBatch(NamedTuple):
    """The rows of one fact, as JSON, in order, and its token."""

    token: int
    rows: list[bytes]


class BatchAssembler:
    """Collects the rows of each (stream, writer) until the line with the token.

    One assembler per connection: unfinished batches are lost with it.

    :param max_rows: limit over all unfinished batches
    :param max_bytes: likewise, in bytes
    """

    def __init__(
        self, max_rows: int = DEFAULT_MAX_ROWS, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> None:
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._unfinished: dict[tuple[str, str | None], list[bytes]] = {}
        self._rows = 0
        self._bytes = 0

    @property
    def pending(self) -> int:
        """Number of rows that wait for their token."""
        return self._rows

    def add(self, rdata: Rdata) -> RowBatch | None:
        """Add a row, and return the batch if this was its last row.

        :raises BatchTooLarge: a limit was exceeded; all unfinished batches are dropped
        """
        token = rdata.token
        if token is not None and not self._unfinished:  # most facts have one row
            return RowBatch(token, [rdata.row])
        key = rdata.stream, rdata.writer
        if token is not None:
            rows = self._take(key)
            rows.append(rdata.row)
            return RowBatch(token, rows)
        self._rows += 1
        self._bytes += len(rdata.row)
        if self._rows > self._max_rows or self._bytes > self._max_bytes:
            too_many = self._rows > self._max_rows
            self.clear()
            raise BatchTooLarge(
                limit=self._max_rows if too_many else self._max_bytes,
                unit="rows" if too_many else "bytes",
                stream=rdata.stream,
                writer=rdata.writer,
            )
        self._unfinished.setdefault(key, []).append(rdata.row)
        return None

    def reset(self, position: Position) -> int:
        """Drop the unfinished batch of a POSITION's stream and writer; return its number of rows."""
        return len(self._take((position.stream, position.writer)))

    def clear(self) -> None:
        """Drop all unfinished batches."""
        self._unfinished.clear()
        self._rows = self._bytes = 0

    def _take(self, key: tuple[str, str | None]) -> list[bytes]:
        rows = self._unfinished.pop(key, [])
        self._rows -= len(rows)
        self._bytes -= sum(map(len, rows))
        return rows
