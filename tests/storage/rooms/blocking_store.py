"""Persists in the caller's thread, with failures wherever a test wants them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.rooms.watched_transaction import WatchedTransaction
from synrepl.core.errors import StorageError
from synrepl.driver.blocking import BlockingDatabase
from synrepl.rooms import RoomVersion
from synrepl.storage.database import Transaction
from synrepl.storage.outbox import Outbox
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.storage.rooms.persisting.persist_run import PersistRun
from synrepl.storage.rooms.persisting.room_memory import RoomMemories
from synrepl.storage.rooms.tables.incoming import IncomingEvent, PersistedBatch
from synrepl.streams.row import Row
from synrepl.streams.rows import RowCodec

#: The tables of rooms.
TABLES = (
    "_rooms",
    "_room_keys",
    "_room_events",
    "_room_event_json",
    "_state_groups",
    "_state_line",
    "_state_lines",
    "_state_group_lines",
    "_current_state",
    "_memberships",
    "_room_heads",
    "_forward_extremities",
    "_backward_extremities",
    "_waiting_events",
    "_redactions",
    "_branch_memberships",
    "_membership_history",
    "_partial_events",
    "_partial_rooms",
    "_resync_events",
    "_resync_jobs",
    "_resync_attempts",
    "_listed_events",
    "_fetched_events",
    "_room_joins",
    "_device_list_pokes",
    "_staged_events",
    "_failed_fetches",
    "_remote_memberships",
    "_received_transactions",
)

#: Forgets all rooms. With so few rows it is many times faster than TRUNCATE, which makes new files.
EMPTY = "; ".join(f"DELETE FROM synrepl.{table}" for table in TABLES)

_CODECS = {stream.name: RowCodec(stream) for stream in ROOM_STREAMS}


class InjectedFailure(StorageError):
    """statement {number} fails because a test says so"""


class FailingStatement:
    """Counts statements, and fails at one of them.

    :param at: which one, from 1; None for none
    :ivar count: of statements so far
    """

    def __init__(self, at: int | None) -> None:
        self._at = at
        self.count = 0

    def __call__(self, sql: str) -> None:
        """Count a statement.

        :raises InjectedFailure: it is the one that fails
        """
        self.count += 1
        if self.count == self._at:
            raise InjectedFailure(number=self.count)


class RecordedFacts:
    """The streams of a database, in memory: what was committed, by token.

    :ivar facts: by stream, rows by token
    """

    def __init__(self) -> None:
        self.last: dict[str, int] = {stream.name: 0 for stream in ROOM_STREAMS}
        self.facts: dict[str, dict[int, tuple[Row, ...]]] = {}
        self.clear()

    def clear(self) -> None:
        self.facts = {stream.name: {} for stream in ROOM_STREAMS}


class BlockingPersister:
    """A process that persists, without a writer: tokens come from :class:`RecordedFacts`.

    :ivar statements: of the last transaction
    """

    def __init__(self, dsn: str, name: str, streams: RecordedFacts) -> None:
        self.database = BlockingDatabase(dsn, name)
        self._streams = streams
        self._memories = RoomMemories()
        self._room_nos: dict[str, int] = {}
        self.statements = 0

    def forget(self) -> None:
        """Forget everything about rooms, as after a restart."""
        self._memories = RoomMemories()
        self._room_nos.clear()

    def persist(
        self,
        room_id: str,
        version: RoomVersion,
        events: Sequence[IncomingEvent],
        fail_at: int | None = None,
        answer_is_lost: bool = False,
    ) -> PersistedBatch | None:
        """Persist a batch.

        :param fail_at: the statement that fails
        :param answer_is_lost: whether the process does not hear of the commit
        :raises InjectedFailure: it failed
        """
        run = PersistRun(room_id, version.name, events, self._memories, self._room_nos)
        committing: list[Callable[[], None]] = []

        def work(txn: Transaction) -> None:
            counted = FailingStatement(fail_at)
            failing = WatchedTransaction(txn, counted)
            outbox = Outbox(_CODECS)
            try:
                run(failing, outbox)
                outbox.close()
                tokens: dict[str, list[int]] = {}
                posted: list[tuple[str, int, tuple[Row, ...]]] = []
                for stream, facts in outbox.facts.items():
                    for rows in facts:
                        self._streams.last[stream] += 1
                        tokens.setdefault(stream, []).append(self._streams.last[stream])
                        posted.append((stream, self._streams.last[stream], rows))
                outbox.reserved(failing, tokens)
            finally:
                self.statements = counted.count
            committing.append(
                lambda: [self._streams.facts[s].update({t: rows}) for s, t, rows in posted] and None
            )

        self.database.run("a batch", work)
        committing[-1]()
        if answer_is_lost:
            return None
        result, memory = run.result, run.memory
        assert memory is not None
        if memory.extremities is not None:
            memory.trim(memory.extremities.event_ids)
        self._memories.put_back(room_id, memory)
        self._room_nos[room_id] = result.room_no
        return result

    def empty(self) -> None:
        """Empty the tables."""
        self.database.run("empty", lambda txn: txn.execute(EMPTY) and None)
        self.forget()
