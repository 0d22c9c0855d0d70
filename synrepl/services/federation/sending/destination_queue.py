"""What one destination is to get, and how far it has got it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from synrepl.federation.transactions import MAX_PDUS
from synrepl.services.federation.sending.pending_edus import PendingEdus
from synrepl.storage.federation.destination_queues import RecordedTransaction, StoredQueue

#: Events of one destination that are kept in memory. One that is further behind reads from the database what it missed.
MAX_PENDING = 1_000


class QueueState(StrEnum):
    """Where the next events of a destination come from."""

    LIVE = "live"  #: they are passed to it as they come
    BEHIND = "behind"  #: they have to be read, after those that were read already
    LOADING = "loading"  #: they are being read; those that come meanwhile follow


class Away(NamedTuple):
    """A destination that is left alone.

    :ivar until: the time of the next attempt, in seconds since 1970
    :ivar is_shared: whether the database says so, to all processes
    """

    until: float
    reason: str
    is_shared: bool = False


class DestinationQueue:
    """The queue of a destination.

    :ivar after: events up to here are sent, or not for this destination; meaningful while it is not live
    :ivar pending: stream IDs of the next events, ascending
    :ivar page_upto: everything that it missed up to here is pending, or was
    :ivar has_missed: while it is behind: whether there may be more events that it missed
    :ivar in_flight: the transaction that is being sent, or that may have arrived
    :ivar is_recorded: whether ``in_flight`` is in the database, or was not sent without being there
    :ivar must_record: the database says that nothing above a position was sent, so every transaction is recorded first
    :ivar single_upto: events up to here may have been sent before this process started, each in the transaction that
        is named after it
    :ivar stored: its row in the database; None: it has none
    :ivar checked_position: the position at the last checkpoint
    :ivar has_messages: whether there may be messages to its devices, likewise ``has_pokes`` for device lists
    :ivar batch_limit: after a transaction was refused: maximum number of events or of EDUs in the next; 0: no such limit
    :ivar failures: number of failures in a row
    :ivar away: why it is left alone; None: it is not
    :ivar waiting_since: since when something waits for it, in seconds since 1970; 0: nothing does
    """

    __slots__ = (
        "after",
        "away",
        "batch_limit",
        "checked_position",
        "edus",
        "failures",
        "has_messages",
        "has_missed",
        "has_pokes",
        "in_flight",
        "is_busy",
        "is_queued",
        "is_recorded",
        "is_void",
        "must_record",
        "name",
        "page_upto",
        "partition",
        "pending",
        "single_upto",
        "state",
        "stored",
        "waiting_since",
    )

    def __init__(self, name: str, partition: int, single_upto: int = 0) -> None:
        self.name = name
        self.partition = partition
        self.single_upto = single_upto
        self.after = 0
        self.pending: list[int] = []
        self.page_upto = 0
        self.state = QueueState.LIVE
        self.has_missed = False
        self.in_flight: RecordedTransaction | None = None
        self.is_recorded = False
        self.must_record = False
        self.stored: StoredQueue | None = None
        self.checked_position = -1
        self.edus: PendingEdus | None = None
        self.has_messages = False
        self.has_pokes = False
        self.away: Away | None = None
        self.batch_limit = 0
        self.failures = 0
        self.waiting_since = 0.0
        self.is_queued = False
        self.is_busy = False
        self.is_void = False

    def restore(self, stored: StoredQueue) -> None:
        """Continue from a row that another process, or an earlier run of this one, has left."""
        self.stored = stored
        self.must_record = stored.is_exact
        if stored.is_exact:
            self.single_upto = 0
        self.in_flight = stored.transaction
        self.is_recorded = stored.transaction is not None
        self.after = stored.position
        if self.in_flight is not None and self.in_flight.events:
            self.after = max(self.after, self.in_flight.events[-1])
        self.state = QueueState.BEHIND
        self.has_missed = True

    # -- what it is to get --------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether there is anything to send, or to be read first."""
        return bool(
            self.in_flight is not None
            or self.pending
            or self.has_missed
            or self.has_messages
            or self.has_pokes
            or self.edus
        )

    def add(self, stream_id: int) -> bool:
        """Add an event; returns whether the destination has to be woken."""
        if stream_id <= self.after:
            return False
        if self.state is QueueState.BEHIND:
            self.has_missed = True
        else:
            self.pending.append(stream_id)
            if len(self.pending) > MAX_PENDING:
                self._read_later()
        return not self.is_queued and not self.is_busy and self.away is None

    def _read_later(self) -> None:
        """Forget the pending events: they are read when it is their turn."""
        if self.pending:
            if self.state is not QueueState.LOADING:  # else others come before them
                self.after = max(self.after, self.pending[0] - 1)
            self.pending.clear()
            self.has_missed = True
        self.page_upto = 0
        self.state = QueueState.BEHIND

    def pending_edus(self) -> PendingEdus:
        """Its EDUs, to add to them."""
        if self.edus is None:
            self.edus = PendingEdus()
        return self.edus

    def position(self, fanned: int) -> int:
        """The position up to which it has got every event that it was to get.

        :param fanned: the position up to which events were passed to the destinations of its partition
        """
        if self.in_flight is not None and self.in_flight.events:
            return self.in_flight.events[0] - 1
        if self.state is QueueState.LOADING:
            return self.after
        if self.pending:
            return self.pending[0] - 1
        return max(fanned, self.after) if self.state is QueueState.LIVE else self.after

    # -- transactions ---------------------------------------------------------------------------

    @property
    def must_read(self) -> bool:
        """Whether the next events have to be read first."""
        return self.state is QueueState.BEHIND and self.has_missed and not self.pending

    def next_events(self) -> tuple[int, ...]:
        """The events of the next transaction."""
        if not self.pending or self.state is QueueState.LOADING:
            return ()
        most = 1 if self.pending[0] <= self.single_upto else self.batch_limit or MAX_PDUS
        return tuple(self.pending[:most])

    def begin(self, transaction: RecordedTransaction) -> None:
        """A transaction with its next events is about to be sent."""
        count = len(transaction.events)
        assert tuple(self.pending[:count]) == transaction.events
        del self.pending[:count]
        if count:
            self.after = max(self.after, transaction.events[-1])
        if not self.pending:
            self.after = max(self.after, self.page_upto)
        self.in_flight, self.is_recorded = transaction, False

    def delivered(self) -> None:
        """The destination has answered the transaction."""
        self.in_flight, self.failures = None, 0
        self.batch_limit *= 2
        if self.batch_limit >= MAX_PDUS:
            self.batch_limit = 0

    def refused(self) -> bool:
        """The destination does not accept the transaction as it is: the next one has half as much in it.

        :returns: whether there is nothing left to divide: this one is given up
        """
        transaction = self.in_flight
        assert transaction is not None
        events, messages = transaction.events, transaction.messages
        self.in_flight = None
        if len(events) + len(messages) <= 1:
            return True
        if events:
            self.pending[:0] = events
            self.after = events[0] - 1
        self.batch_limit = max(1, max(len(events), len(messages)) // 2)
        return False

    def goes_away(self, away: Away, fanned: int, *, keeps_events: bool = False) -> None:
        """Leave the destination alone. It misses what comes until it is back, and EDUs that nobody keeps.

        :param keeps_events: it misses no event: it is there, and does not accept something
        """
        self.away = away
        self.failures += 1
        self.edus = None
        if self.in_flight is not None and not (self.in_flight.events or self.in_flight.messages):
            self.in_flight = None
        if keeps_events:
            return
        if self.state is QueueState.LIVE and not self.pending:
            self.after = max(self.after, fanned)
        self._read_later()

    def comes_back(self, fanned: int) -> None:
        """Try the destination again."""
        self.away = None
        if self.state is QueueState.BEHIND and not self.has_missed:
            # Nothing was for it meanwhile.
            self.after = max(self.after, fanned)
            self.state = QueueState.LIVE

    # -- reading what it missed -----------------------------------------------------------------

    def begin_loading(self) -> None:
        """What it missed is being read; what comes from now on is added."""
        self.state = QueueState.LOADING

    def loaded(self, stream_ids: Sequence[int], upto: int, is_complete: bool) -> None:
        """What it missed was read.

        :param upto: everything that it missed up to here is among ``stream_ids``
        :param is_complete: whether nothing else is missing but what was added meanwhile
        """
        if self.state is not QueueState.LOADING:  # it went away meanwhile
            return
        if is_complete:
            self.pending[:0] = stream_ids
            self.page_upto = 0
            self.state, self.has_missed = QueueState.LIVE, False
            self.after = max(self.after, upto) if not self.pending else self.after
        else:
            self.pending[:] = stream_ids
            self.page_upto = upto
            self.state, self.has_missed = QueueState.BEHIND, True
            if not stream_ids:
                self.after = max(self.after, upto)

    def loading_failed(self) -> None:
        """What it missed could not be read."""
        if self.state is QueueState.LOADING:
            self._read_later()
            self.has_missed = True

    # -- what is stored of it ---------------------------------------------------------------------

    @property
    def is_position_exact(self) -> bool:
        """Whether nothing above its position was ever sent but the transaction in flight, while it is away."""
        next_after = self.pending[0] - 1 if self.pending else self.after
        return next_after >= self.single_upto

    def row(self, fanned: int, *, is_exact: bool) -> StoredQueue:
        """The row that it should have.

        :param is_exact: whether nothing but its transaction was sent above its position
        """
        transaction = self.in_flight if self.is_recorded or is_exact else None
        return StoredQueue(self.name, self.partition, self.position(fanned), is_exact, transaction)
