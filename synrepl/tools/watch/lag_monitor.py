"""Compares announced positions with those committed in the database: lag by writer, silent writers."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from synrepl.core.clock import Clock, Scheduler
from synrepl.core.tokens import Token
from synrepl.services.sources import LINEAR, Key
from synrepl.services.status.stream_progress import LagTracker, StreamProgress, writer_label
from synrepl.storage.foreign.progress import NEWEST_ROWS
from synrepl.storage.foreign.store import ForeignStore
from synrepl.streams.definition import numbered_together
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.tools.doctor import foreign_snapshot
from synrepl.tools.doctor.foreign_snapshot import ForeignSnapshot
from synrepl.tools.watch.announcements import Announcements

#: A position that was committed this long ago, in seconds, and was not announced raises an
#: alarm: recorded servers announce within a fraction of a second.
SILENT_S = 3.0

#: A process that has not answered REPLICATE for this long, in seconds, raises an alarm:
#: recorded ones take a few hundredths of a second.
ANSWER_S = 5.0

#: Time window of a rate, in seconds.
RATE_S = 10.0

Committed = Mapping[str, Mapping[str, Token]]


class WriterLag(NamedTuple):
    """The lag of one writer of one stream.

    :ivar heard: the announced position; None if nothing was announced
    :ivar committed: the position in the database; None if there is none, or it is not read
    :ivar rate: announced rows per second
    :ivar lag_rows: maximum number of tokens that are committed and not announced
    :ivar lag_seconds: for how long a committed token has not been announced
    :ivar silent: whether the lag has lasted so long that something is wrong
    """

    stream: str
    writer: str
    heard: Token | None
    committed: Token | None
    rows: int
    rate: float
    lag_rows: int
    lag_seconds: float
    silent: bool

    def to_json(self) -> dict[str, Any]:
        """The lag for programs; ``writer`` is null where one position stands for all writers."""
        return {
            **self._asdict(),
            "writer": None if self.writer == LINEAR else self.writer,
            "rate": round(self.rate, 3),
            "lag_seconds": round(self.lag_seconds, 3),
        }

    @property
    def alarm(self) -> str:
        """The problem, as a sentence."""
        announced = (
            "has not been heard of"
            if self.heard is None
            else f"was announced only up to {self.heard}"
        )
        return (
            f"{self.stream} of {writer_label(self.writer)} is at {self.committed} in the database"
            f" and {announced}, for {self.lag_seconds:.0f} s"
        )


class SilentWriter(NamedTuple):
    """A writer that has announced something before, and does not answer REPLICATE.

    :ivar streams: the streams that it has announced
    :ivar seconds: for how long it has not answered
    """

    writer: str
    streams: list[str]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The fields for programs."""
        return {**self._asdict(), "seconds": round(self.seconds, 3)}

    @property
    def alarm(self) -> str:
        """The problem, as a sentence."""
        return (
            f"{self.writer} has not answered REPLICATE for {self.seconds:.0f} s: it does not run,"
            f" or hangs; it writes {', '.join(self.streams)}"
        )


class LagMonitor:
    """Compares announced with committed positions.

    A writer that the database records belongs to the server and answers REPLICATE; if it does not,
    it raises an alarm. A table may also have rows of a writer that no longer exists. A writer that
    is found only there is therefore monitored only after it commits something.

    :param announcements: the positions announced over the wire
    """

    def __init__(self, scheduler: Scheduler, announcements: Announcements) -> None:
        self._scheduler = scheduler
        self._announcements = announcements
        self._rates = _Rates(scheduler)
        self._committed: Committed | None = None
        self._streams_with_writers: Collection[str] = ()
        self._first_committed: dict[Key, Token] = {}
        self._receiving_since: float | None = None
        self._lags = LagTracker(scheduler, self._progress)

    def update_committed(
        self, positions: Committed, streams_with_writers: Collection[str] = ()
    ) -> None:
        """Replace the committed positions.

        :param positions: by stream and writer
        :param streams_with_writers: the streams whose writers are recorded in the database
        """
        self._committed = positions
        self._streams_with_writers = streams_with_writers

    def measure(self, is_receiving: bool = True) -> list[WriterLag]:
        """Measure the lags of all writers, sorted by stream and writer.

        :param is_receiving: whether the server is connected; if not, no writer counts as silent
        """
        now = self._scheduler.seconds()
        if not is_receiving:
            self._receiving_since = None
        elif self._receiving_since is None:
            self._receiving_since = now
        received_for = 0.0 if self._receiving_since is None else now - self._receiving_since
        lags = self._lags.measure()
        rates = self._rates.take(self._announcements.rows)
        measured = []
        for key in sorted(self._keys()):
            lag = lags[_name(key)]
            heard = self._announcements.positions.get(key)
            missing = heard is None and key[0] in self._streams_with_writers
            lag_seconds = max(lag.seconds, received_for) if missing else lag.seconds
            measured.append(
                WriterLag(
                    *key,
                    heard=heard,
                    committed=self._committed_of(key),
                    rows=self._announcements.rows.get(key, 0),
                    rate=rates.get(key, 0.0),
                    lag_rows=lag.rows,
                    lag_seconds=lag_seconds,
                    silent=min(lag_seconds, received_for) >= SILENT_S,
                )
            )
        return measured

    def silent_writers(self) -> list[SilentWriter]:
        """The writers that no longer answer; only on Redis are requests visible to all."""
        return [
            SilentWriter(writer, self._announcements.streams_of(writer), seconds)
            for writer, seconds in sorted(self._announcements.unanswered.items())
            if seconds >= ANSWER_S
        ]

    def _progress(self) -> list[StreamProgress]:
        found = []
        for key in self._keys():
            committed = self._committed_of(key) or 0
            heard = self._announcements.positions.get(key)
            if heard is None:  # its earlier announcements are not known
                heard = self._first_committed.setdefault(key, committed)
            found.append(StreamProgress(_name(key), heard, max(heard, committed)))
        return found

    def _keys(self) -> set[Key]:
        """The announced writers, and the committed ones of streams that have to be announced.

        A server has streams that its release, or this connection, does not announce.
        """
        keys = set(self._announcements.positions)
        streams = {stream for stream, _ in keys}
        linear = {stream for stream, writer in keys if writer == LINEAR}
        if keys:
            streams |= set(self._streams_with_writers)
        for stream, writers in (self._committed or {}).items():
            if stream in streams and stream not in linear:
                keys |= {(stream, writer) for writer, token in writers.items() if token}
        return keys

    def _committed_of(self, key: Key) -> Token | None:
        """The committed position; in the linear view, the highest one of all writers."""
        if self._committed is None or key[0] not in self._committed:
            return None
        writers = self._committed[key[0]]
        return max(writers.values(), default=0) if key[1] == LINEAR else writers.get(key[1])


class _Rates:
    """Computes rows per second from counters."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: deque[tuple[float, Mapping[Key, int]]] = deque()

    def take(self, counts: Mapping[Key, int]) -> dict[Key, float]:
        """The rates over about the last :data:`RATE_S` seconds."""
        now = self._clock.seconds()
        self._counts.append((now, dict(counts)))
        while self._counts[0][0] < now - RATE_S and len(self._counts) > 2:
            self._counts.popleft()
        since, before = self._counts[0]
        if now <= since:
            return {}
        return {key: (count - before.get(key, 0)) / (now - since) for key, count in counts.items()}


def _name(key: Key) -> str:
    return f"{key[0]} {key[1]}"


_TOGETHER = numbered_together(SYNAPSE_STREAMS)


@dataclass(frozen=True, slots=True)
class CommittedPositions:
    """The committed positions, read at one moment.

    :ivar positions: the positions that have to be announced, by stream and writer
    :ivar streams_with_writers: the streams whose writers are recorded in the database
    :ivar unread: sentences about the streams that could not be read, and why
    """

    positions: Committed
    streams_with_writers: Collection[str]
    unread: tuple[str, ...]


async def read_committed(store: ForeignStore, announces_moves: bool) -> CommittedPositions:
    """Read the committed positions once.

    :param announces_moves: whether writers announce positions that moved without rows, as they do
        over Redis; otherwise only rows have to be announced
    :raises SynreplError: any error of :class:`.ForeignStore`
    """
    release = await store.release()
    seen = await store.read(
        "watch", lambda txn: foreign_snapshot.take_snapshot(txn, release, NEWEST_ROWS)
    )
    positions = {}
    for name, stream in seen.streams.items():
        # The recorded position of a stream that shares its sequence also moves with rows of the other.
        shared = _TOGETHER.get(name, frozenset()) & seen.streams.keys()
        only_rows = len(shared) > 1 or not announces_moves
        positions[name] = stream.row_positions if only_rows else stream.positions
    streams_with_writers = [name for name, stream in seen.streams.items() if stream.recorded]
    return CommittedPositions(positions, streams_with_writers, tuple(_unread(seen)))


def _unread(seen: ForeignSnapshot) -> Iterator[str]:
    release = seen.release
    for stream, what in release.unreadable.items():
        yield f"this user may not read {what}, so the committed position of {stream} is not known"
    for stream, missing in release.unknown.items():
        yield f"this release lacks {missing}, so the committed position of {stream} is not known"
    for session in seen.sessions.values():
        streams = seen.locked_by(session)
        if streams:
            yield (
                f"nobody can read table {', '.join(session.locked)}, so how far"
                f" {', '.join(streams)} is in the database is not known: {session.description}"
            )
