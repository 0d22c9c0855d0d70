"""Plain SQL, as from ``psql``: long transactions without leases and sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from simulator.application_data import ApplicationTransaction, DataKey
from simulator.watched_stream import WatchedStream, WriterSnapshot
from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Token
from synrepl.storage.store import DatabaseAway
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row

#: The name of the writer for plain SQL, which every stream has.
SQL = "sql"


class PlainSqlTransaction:
    """A transaction that calls ``synrepl.append()``.

    :param watched: returns the data of a stream
    :param changes: its changes to application data
    :param snapshot: its snapshot of the writer, by stream; None for a transaction that sees current
        data (READ COMMITTED)
    """

    def __init__(
        self,
        watched: Callable[[Stream], WatchedStream],
        changes: ApplicationTransaction,
        snapshot: Mapping[str, WriterSnapshot] | None,
    ) -> None:
        self._watched = watched
        self._changes = changes
        self._snapshot = snapshot
        self._let_in: list[WatchedStream] = []
        self._facts: dict[str, list[Fact]] = {}
        self._holders: list[tuple[WatchedStream, int]] = []
        self._aborted = False

    def change(self, key: DataKey) -> None:
        """Give a key of the application data a new version."""
        self._changes.change(key)

    async def append(self, stream: Stream, rows: Sequence[Row]) -> Token:
        """Append one fact.

        :raises DatabaseAway: the transaction was aborted before
        :raises Drained: the writer is drained; aborts the transaction
        :raises SerializationFailure: the snapshot is too old; aborts the transaction
        """
        self._check()
        watched = self._watched(stream)
        watched.enter(SQL, watched.writer(SQL).epoch)
        self._holders.append((watched, watched.hold(SQL, "transaction of psql")))
        try:
            token = self._take(watched)
        except SynreplError:
            self.abort()
            raise
        self._facts.setdefault(stream.name, []).append(Fact(token, SQL, tuple(rows)))
        return token

    async def commit(self) -> None:
        """Commit everything.

        :raises DatabaseAway: the transaction was aborted
        """
        self._check()
        self._changes.commit()
        for watched in {watched.stream.name: watched for watched, _ in self._holders}.values():
            watched.commit(self._facts[watched.stream.name])
        await self.roll_back()

    async def roll_back(self) -> None:
        """Roll back."""
        self.abort()

    def abort(self) -> None:
        """Release everything, when the server ends the transaction; idempotent."""
        self._aborted = True
        for watched, number in self._holders:
            watched.leave(SQL)
            watched.release(SQL, [number])
        self._holders.clear()
        for watched in self._let_in:
            watched.leave_snapshot(SQL)
        self._let_in.clear()

    def _take(self, watched: WatchedStream) -> Token:
        if self._snapshot is None:
            return watched.take(1, 0)[0]
        known = self._snapshot.get(watched.stream.name) or watched.snapshot(SQL)
        token = watched.take_by_snapshot(known)
        self._let_in.append(watched)
        return token

    def _check(self) -> None:
        if self._aborted:
            raise DatabaseAway(where="simulation", reason="the transaction was aborted")
