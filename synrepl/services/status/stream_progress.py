"""The lag of a process in each stream, in rows and in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from synrepl.core.clock import DelayedCall, Scheduler
from synrepl.core.tokens import Token
from synrepl.services.announcing.stream_state import StreamState
from synrepl.services.sources import LINEAR
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.store import ReservationHolder, WriterState

Key = tuple[str, str]


class StreamProgress(NamedTuple):
    """How far a process is in one stream.

    :ivar reached: the position from which the lag is measured
    :ivar known: the largest token known to have been given out
    :ivar holders: the open reservations, each with its writer
    """

    stream: str
    reached: Token
    known: Token
    holders: tuple[tuple[str, ReservationHolder], ...] = ()


class OpenReservation(NamedTuple):
    """A reservation that is not settled.

    :ivar seconds: seconds since it was first seen; for one that was there at the first measurement,
        the age of its transaction
    """

    writer: str
    describe: str
    seconds: float


class Lag(NamedTuple):
    """The lag of a stream.

    :ivar rows: number of tokens between the reached and the known one; an upper bound of the
        number of facts, since tokens may be rolled back
    :ivar seconds: for how long a token has been known that is not reached
    :ivar oldest: the reservation that has been open for longest
    """

    rows: int
    seconds: float
    oldest: OpenReservation | None


class LagTracker:
    """Measures the lag of streams periodically, to find out for how long they have been behind.

    A stream in use is nearly always a little behind. So the seconds are not counted from the
    moment at which it fell behind, but from the moment at which its goal became known: a token
    that it has not reached yet. When the goal is reached, the largest known token becomes the
    next goal. So a stream that advances shows a small lag, and a stuck one shows for how long it
    has been stuck.

    :param progress: returns the present progress of all streams
    :param every_s: seconds between two measurements
    """

    def __init__(
        self,
        scheduler: Scheduler,
        progress: Callable[[], Iterable[StreamProgress]],
        every_s: float = 1.0,
    ) -> None:
        self._scheduler = scheduler
        self._progress = progress
        self._every_s = every_s
        self._goals: dict[str, tuple[Token, float]] = {}
        #: By stream, writer and reservation: when it was first seen.
        self._seen: dict[str, dict[tuple[str, ReservationHolder], float]] = {}
        self._timer: DelayedCall | None = None

    def start(self) -> None:
        """Measure now, and periodically from now on."""
        self.measure()
        self._timer = self._scheduler.callLater(self._every_s, self.start)

    def stop(self) -> None:
        """Stop measuring periodically."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    def measure(self) -> dict[str, Lag]:
        """Measure now; returns the lag of each stream."""
        now = self._scheduler.seconds()
        found = {progress.stream: self._lag(progress, now) for progress in self._progress()}
        for gone in self._goals.keys() - found.keys():
            del self._goals[gone]
            del self._seen[gone]
        return found

    def _lag(self, progress: StreamProgress, now: float) -> Lag:
        stream, reached, known, _ = progress
        goal, since = self._goals.get(stream, (0, now))
        if goal <= reached:
            goal, since = self._goals[stream] = known, now
        behind = max(0, known - reached)
        return Lag(behind, max(0.0, now - since) if behind else 0.0, self._oldest(progress, now))

    def _oldest(self, progress: StreamProgress, now: float) -> OpenReservation | None:
        before = self._seen.get(progress.stream)
        seen = {}
        for held in progress.holders:
            if before is None:  # the first measurement: only the age of its transaction is known
                seen[held] = now - (held[1].transaction_s or 0.0)
            else:
                seen[held] = before.get(held, now)
        self._seen[progress.stream] = seen
        if not seen:
            return None
        writer, holder = oldest = min(progress.holders, key=lambda held: seen[held])
        return OpenReservation(writer, holder.description, max(0.0, now - seen[oldest]))


def master_progress(
    states: Mapping[str, StreamState], writer: StreamWriter
) -> list[StreamProgress]:
    """The progress of a master: linear positions against the last reserved tokens."""
    return [
        StreamProgress(name, state.linear, last_reserved(state, writer), tuple(_holders(state)))
        for name, state in states.items()
    ]


def last_reserved(state: StreamState, writer: StreamWriter) -> Token:
    """The largest token known to be reserved, by this process or as seen in the database."""
    known = [state.linear, *state.positions.values()]
    if state.observation is not None:
        known.append(state.observation.last)
    with suppress(KeyError):  # it does not write this stream, or has not started
        known.append(writer.ledger(state.stream.name).seen)
    return max(known)


def worker_progress(
    own: Mapping[Key, Token], announced: Mapping[Key, Token]
) -> list[StreamProgress]:
    """The progress of a worker: its own positions against those that were announced to it.

    Writers share the tokens of a stream, so the lag is measured at the writer that is furthest
    behind.
    """
    by_stream: dict[str, list[Key]] = {}
    for key in announced:
        by_stream.setdefault(key[0], []).append(key)
    streams = []
    for stream, keys in by_stream.items():
        known = max(announced[key] for key in keys)
        behind = [own.get(key, 0) for key in keys if own.get(key, 0) < announced[key]]
        streams.append(StreamProgress(stream, min(behind, default=known), known))
    return streams


def present_writers(state: StreamState) -> dict[str, Token]:
    """The positions of a stream's writers, without removed ones."""
    seen = {} if state.observation is None else state.observation.writers
    return {
        writer: position
        for writer, position in state.positions.items()
        if writer not in seen or not seen[writer].is_removed
    }


def removed_writers(state: StreamState) -> dict[str, Token]:
    """The positions of removed writers, whose facts still exist."""
    present = present_writers(state)
    return {name: at for name, at in state.positions.items() if name not in present}


def writer_label(writer: str) -> str:
    """A writer's name for display; the linear view has none."""
    return writer if writer != LINEAR else "(all)"


def held_by(state: StreamState) -> dict[str, WriterState]:
    """The writers that hold back the linear position, by name.

    These are writers with an open reservation, and dead ones that are not fenced yet.
    """
    if state.observation is None:
        return {}
    return {
        writer: seen
        for writer, seen in sorted(state.observation.writers.items())
        if seen.holders or (seen.is_held and not seen.is_alive)
    }


def _holders(state: StreamState) -> Iterable[tuple[str, ReservationHolder]]:
    if state.observation is None:
        return
    for writer, seen in state.observation.writers.items():
        for holder in seen.holders:
            yield writer, holder
