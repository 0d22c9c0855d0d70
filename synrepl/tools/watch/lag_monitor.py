"""Compares announced with committed positions: lag by writer, and silent writers."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from synrepl.core.clock import Clock, Scheduler
from synrepl.core.tokens import Token
from synrepl.services.sources import LINEAR, Key
from synrepl.services.status.stream_progress import LagTracker, StreamProgress, writer_label
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
    """One writer of one stream now.

    :ivar heard: the position on the wire; None when nothing was heard
    :ivar committed: the position in the database; None when there is none, or nobody looks
    :ivar rate: rows per second on the wire
    :ivar lag_rows: tokens that are committed and were not announced, at most
    :ivar lag_seconds: for how long some token that was committed then has not been announced
    :ivar silent: so long that something is wrong
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
        """For programs; ``writer`` is null where one number stands for all."""
        return {
            **self._asdict(),
            "writer": None if self.writer == LINEAR else self.writer,
            "rate": round(self.rate, 3),
            "lag_seconds": round(self.lag_seconds, 3),
        }

    @property
    def alarm(self) -> str:
        """What is wrong with it, in a sentence."""
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
    """A writer that was heard, and has not answered since it was asked.

    :ivar streams: what it was heard to write
    :ivar seconds: for how long it owes an answer
    """

    writer: str
    streams: list[str]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {**self._asdict(), "seconds": round(self.seconds, 3)}

    @property
    def alarm(self) -> str:
        """What is wrong with it, in a sentence."""
        return (
            f"{self.writer} has not answered REPLICATE for {self.seconds:.0f} s: it does not run,"
            f" or hangs; it writes {', '.join(self.streams)}"
        )


class LagMonitor:
    """Compares announced with committed positions.

    A writer on record belongs to the server, and answers REPLICATE; one that does not raises an
    alarm. A table may also have rows of a writer that no longer exists, so a writer that is only
    found there is monitored once it commits something.

    :param heard: what comes over the wire
    """

    def __init__(self, scheduler: Scheduler, heard: Announcements) -> None:
        self._scheduler = scheduler
        self._heard = heard
        self._rates = _Rates(scheduler)
        self._committed: Committed | None = None
        self._on_record: Collection[str] = ()
        self._at_first: dict[Key, Token] = {}
        self._hears_since: float | None = None
        self._lags = LagTracker(scheduler, self._standings)

    def committed(self, positions: Committed, on_record: Collection[str] = ()) -> None:
        """What the database says, by stream and writer; anew each time.

        :param on_record: the streams of which it says who writes them
        """
        self._committed = positions
        self._on_record = on_record

    def look(self, is_receiving: bool = True) -> list[WriterLag]:
        """Everything now, by stream and writer.

        :param hears: the server is heard; while it is not, nobody can be said to be silent
        """
        now = self._scheduler.seconds()
        if not is_receiving:
            self._hears_since = None
        elif self._hears_since is None:
            self._hears_since = now
        listened = 0.0 if self._hears_since is None else now - self._hears_since
        lags = self._lags.measure()
        rates = self._rates.take(self._heard.rows)
        seen = []
        for key in sorted(self._keys()):
            lag = lags[_name(key)]
            heard = self._heard.positions.get(key)
            missing = heard is None and key[0] in self._on_record
            lag_seconds = max(lag.seconds, listened) if missing else lag.seconds
            seen.append(
                WriterLag(
                    *key,
                    heard=heard,
                    committed=self._committed_of(key),
                    rows=self._heard.rows.get(key, 0),
                    rate=rates.get(key, 0.0),
                    lag_rows=lag.rows,
                    lag_seconds=lag_seconds,
                    silent=min(lag_seconds, listened) >= SILENT_S,
                )
            )
        return seen

    def silent_writers(self) -> list[SilentWriter]:
        """Those that do not answer any more; only over Redis is anybody asked after all."""
        return [
            SilentWriter(writer, self._heard.streams_of(writer), seconds)
            for writer, seconds in sorted(self._heard.unanswered.items())
            if seconds >= ANSWER_S
        ]

    def _standings(self) -> list[StreamProgress]:
        found = []
        for key in self._keys():
            committed = self._committed_of(key) or 0
            heard = self._heard.positions.get(key)
            if heard is None:  # what it announced before is not known
                heard = self._at_first.setdefault(key, committed)
            found.append(StreamProgress(_name(key), heard, max(heard, committed)))
        return found

    def _keys(self) -> set[Key]:
        """What was heard, and what is committed of streams that have to be heard of.

        A server has streams that its release, or this connection, does not announce.
        """
        keys = set(self._heard.positions)
        streams = {stream for stream, _ in keys}
        linear = {stream for stream, writer in keys if writer == LINEAR}
        if keys:
            streams |= set(self._on_record)
        for stream, writers in (self._committed or {}).items():
            if stream in streams and stream not in linear:
                keys |= {(stream, writer) for writer, token in writers.items() if token}
        return keys

    def _committed_of(self, key: Key) -> Token | None:
        """Of the linear view that is the furthest of all writers."""
        if self._committed is None or key[0] not in self._committed:
            return None
        writers = self._committed[key[0]]
        return max(writers.values(), default=0) if key[1] == LINEAR else writers.get(key[1])


class _Rates:
    """Rows per second, of counts that only grow."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: deque[tuple[float, Mapping[Key, int]]] = deque()

    def take(self, counts: Mapping[Key, int]) -> dict[Key, float]:
        """The rates since about :data:`RATE_S` ago."""
        now = self._clock.seconds()
        self._counts.append((now, dict(counts)))
        while self._counts[0][0] < now - RATE_S and len(self._counts) > 2:
            self._counts.popleft()
        since, before = self._counts[0]
        if now <= since:
            return {}
        return {key: (n - before.get(key, 0)) / (now - since) for key, n in counts.items()}


def _name(key: Key) -> str:
    return f"{key[0]} {key[1]}"
