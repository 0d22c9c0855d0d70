"""The outbox: facts that a caller's transaction appends together with its own changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from synrepl.core.errors import InputError
from synrepl.core.tokens import Token
from synrepl.storage.database import Transaction
from synrepl.streams.definition import Stream
from synrepl.streams.row import Row
from synrepl.streams.rows import RowCodec

#: Maximum number of rows that a transaction may append; a fact without rows counts as one.
OUTBOX_ROWS = 10_000


class NotNamed(InputError):
    """a fact was appended to stream {stream!r} by a transaction that named only {named}; name every stream that it may append to"""


#: Gets the transaction, and the tokens of its facts by stream, in the order in which they were appended.
AfterReserving = Callable[[Transaction, Mapping[str, Sequence[Token]]], object]


class OutboxFull(InputError):
    """a transaction may append {limit} rows at most, and a fact of stream {stream!r} would make them {rows}; split the work into several transactions"""


class OutboxClosed(InputError):
    """a fact of stream {stream!r} came into the outbox of a transaction whose work was over; append before the work function returns"""


class HookTooLate(InputError):
    """a call after reserving tokens was registered by a transaction whose work was over; register it before the work function returns"""


class KeptInMemory(InputError):
    """stream {stream!r} is kept in memory, where no transaction of the database reaches; append to it by itself"""


class EarlyTokens:
    """One token of each stream of a transaction, reserved in a statement of its work.

    :ivar column: SQL of an array of stream IDs, to be selected once, and only in a row that is returned
    :ivar params: its parameters
    :ivar of_stream: the tokens, once they are reserved
    """

    def __init__(self, streams: Sequence[str], column: str, params: Sequence[object]) -> None:
        self.column = column
        self.params = params
        self.of_stream: dict[str, Token] = {}
        self._streams = streams

    def take(self, stream_ids: Sequence[int]) -> None:
        """Note what the column returned."""
        self.of_stream = dict(zip(self._streams, map(abs, stream_ids), strict=True))


def _no_tokens() -> None:
    return None


class Outbox:
    """Facts to be appended at the end of the caller's transaction, and only if it commits.

    A bad row is refused when it is added, before it reaches the database.

    :param codecs: by stream name, the codecs of the streams that may be appended to
    :param reserve: makes what :meth:`reserve_early` returns
    :ivar early: what it returned
    """

    def __init__(
        self,
        codecs: Mapping[str, RowCodec],
        reserve: Callable[[], EarlyTokens | None] = _no_tokens,
    ) -> None:
        self.early: EarlyTokens | None = None
        self._reserve = reserve
        self._codecs = codecs
        self._facts: dict[str, list[tuple[Row, ...]]] = {}
        self._rows = 0
        self._closed = False
        self._after_reserving: list[AfterReserving] = []

    @property
    def streams(self) -> Collection[str]:
        """The names of the streams that may be appended to."""
        return self._codecs.keys()

    @property
    def facts(self) -> Mapping[str, Sequence[tuple[Row, ...]]]:
        """The rows of each fact, in order, by stream name; streams without facts are left out."""
        return self._facts

    def append(self, stream: Stream, rows: Sequence[Row]) -> None:
        """Add a fact. Its rows share a token; there may be none.

        :raises NotNamed: the transaction did not name this stream
        :raises BadRow: a row is not of this stream, or cannot be stored
        :raises OutboxFull:
        :raises OutboxClosed:
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

    def reserve_early(self) -> EarlyTokens | None:
        """Reserve tokens in a statement of the work, which saves the round trip of reserving them after it.

        From now on all positions wait for the transaction, so what follows must be quick, whatever it
        meets: it may not wait for a lock. Where the column is not selected after all, the work must fail. Tokens of
        streams that get no fact remain unused.

        :returns: None if tokens can only be reserved after the work, as they are without this
        """
        self.early = self._reserve()
        return self.early

    def after_reserving(self, call: AfterReserving) -> None:
        """Call ``call(txn, tokens)`` once the tokens of the facts are reserved, before the commit.

        So work can write the tokens of its facts into its own tables. All positions wait for the reserved
        tokens until the transaction ends, so the call should do nothing that can be done before. It
        must not append facts. Like the work itself, it may be called more than once, each time after another
        run of the work, and the transaction may still be rolled back. Streams without facts have no
        tokens.

        :raises HookTooLate: the work function has returned
        """
        if self._closed:
            raise HookTooLate()
        self._after_reserving.append(call)

    def reserved(self, txn: Transaction, tokens: Mapping[str, Sequence[Token]]) -> None:
        """Call what was registered; for stores."""
        for call in self._after_reserving:
            call(txn, tokens)

    def close(self) -> None:
        """Refuse further facts, which would be lost after the work has returned."""
        self._closed = True
        # It leads back here: a whole batch would wait for the garbage collection.
        self._reserve = _no_tokens
