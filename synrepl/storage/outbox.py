"""What a transaction of the caller's appends along with its own changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from synrepl.core.errors import InputError
from synrepl.streams.definition import Stream
from synrepl.streams.row import Row
from synrepl.streams.rows import RowCodec

#: What one transaction may append, in rows; a fact without rows counts as one.
OUTBOX_ROWS = 10_000


class NotNamed(InputError):
    """a fact was appended to stream {stream!r} by a transaction that named only {named}; name every stream that it may append to"""


class OutboxFull(InputError):
    """a transaction may append {limit} rows at most, and a fact of stream {stream!r} would make them {rows}; split the work into several transactions"""


class OutboxClosed(InputError):
    """a fact of stream {stream!r} came into the outbox of a transaction whose work was over; append before the work function returns"""


class KeptInMemory(InputError):
    """stream {stream!r} is kept in memory, where no transaction of the database reaches; append to it by itself"""


class Outbox:
    """Facts to be appended in the caller's transaction: after its work, and only with it.

    A bad row is refused where it is appended, before the database has seen it.

    :param codecs: those of the streams that may be appended to, by name
    """

    def __init__(self, codecs: Mapping[str, RowCodec]) -> None:
        self._codecs = codecs
        self._facts: dict[str, list[tuple[Row, ...]]] = {}
        self._rows = 0
        self._closed = False

    @property
    def facts(self) -> Mapping[str, Sequence[tuple[Row, ...]]]:
        """The rows of each fact, in order, by the name of the stream; only streams that got some."""
        return self._facts

    def append(self, stream: Stream, rows: Sequence[Row]) -> None:
        """Append one fact; its rows share a token, and there may be none.

        :raises NotNamed: the transaction did not name this stream
        :raises BadRow: a row is none of this stream, or cannot be stored
        :raises OutboxFull: :raises OutboxClosed:
        """
        if self._closed:
            raise OutboxClosed(stream=stream.name)
        codec = self._codecs.get(stream.name)
        if codec is None:
            named = ", ".join(map(repr, self._codecs)) or "none"
            raise NotNamed(stream=stream.name, named=named)
        total = self._rows + max(1, len(rows))
        if total > OUTBOX_ROWS:
            raise OutboxFull(limit=OUTBOX_ROWS, stream=stream.name, rows=total)
        fact = tuple(rows)
        for row in fact:
            codec.check_storable(row)
        self._facts.setdefault(stream.name, []).append(fact)
        self._rows = total

    def close(self) -> None:
        """The work is over: what comes now would be lost, so it is refused."""
        self._closed = True
