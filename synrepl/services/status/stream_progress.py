"""How far behind a process is, stream by stream, and since when."""

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
    """One stream now.

    :ivar reached: the position that counts
    :ivar known: the largest token known to have been given out
    :ivar holders: reservations that are not settled, each with its writer
    """

    stream: str
    reached: Token
    known: Token
    holders: tuple[tuple[str, ReservationHolder], ...] = ()


class OpenReservation(NamedTuple):
    """A reservation that is not settled.

    :ivar seconds: age since it was first seen; one that was there at the first look is taken
        to be as old as its transaction
    """

    writer: str
    describe: str
    seconds: float


class Lag(NamedTuple):
    """How far a stream is behind.

    :ivar rows: how many tokens lie between what is reached and what is known; an
        upper bound of facts, for tokens may be rolled back
    :ivar seconds: how long some token that was known then has not been reached
    :ivar oldest: the reservation that has been seen for longest
    """

    rows: int
    seconds: float
    oldest: OpenReservation | None


class LagTracker:
    """Looks at streams from time to time, to know since when they are as they are.

    A stream in use is nearly always a little behind, so the seconds are not
    counted from the first moment at which it was behind at all, but from the
    moment when the token was known that it has still to reach. Once that one is
    reached, the largest known token takes its place. So a stream that moves
    shows little and one that is stuck shows how long.

    :param streams: gives all streams as they are now
    :param every_s: seconds between looks
    """

    def __init__(
        self,
        scheduler: Scheduler,
        streams: Callable[[], Iterable[StreamProgress]],
        every_s: float = 1.0,
    ) -> None:
        self._scheduler = scheduler
        self._streams = streams
        self._every_s = every_s
        self._goals: dict[str, tuple[Token, float]] = {}
        #: By stream, writer and reservation: when it was first seen.
        self._seen: dict[str, dict[tuple[str, ReservationHolder], float]] = {}
        self._timer: DelayedCall | None = None

    def start(self) -> None:
        """Look now, and from now on."""
        self.measure()
        self._timer = self._scheduler.callLater(self._every_s, self.start)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    def measure(self) -> dict[str, Lag]:
        """Look now; the lag of each stream."""
        now = self._scheduler.seconds()
        found = {progress.stream: self._lag(progress, now) for progress in self._streams()}
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
            if before is None:  # the first look: how long it has been there shows only in its age
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
    """A master's streams: the linear position against the last token that anybody reserved."""
    return [
        StreamProgress(name, state.linear, last_reserved(state, writer), tuple(_holders(state)))
        for name, state in states.items()
    ]


def last_reserved(state: StreamState, writer: StreamWriter) -> Token:
    """The largest token known to have been given out, to this process or seen in the database."""
    known = [state.linear, *state.positions.values()]
    if state.observation is not None:
        known.append(state.observation.last)
    with suppress(KeyError):  # it does not write this stream, or has not started
        known.append(writer.ledger(state.stream.name).seen)
    return max(known)


def worker_progress(own: Mapping[Key, Token], heard: Mapping[Key, Token]) -> list[StreamProgress]:
    """A worker's streams: its own positions against what it has heard of the master's.

    Writers share a stream's tokens, so the rows between are counted from the
    writer that is furthest behind.
    """
    by_stream: dict[str, list[Key]] = {}
    for key in heard:
        by_stream.setdefault(key[0], []).append(key)
    streams = []
    for stream, keys in by_stream.items():
        known = max(heard[key] for key in keys)
        behind = [own.get(key, 0) for key in keys if own.get(key, 0) < heard[key]]
        streams.append(StreamProgress(stream, min(behind, default=known), known))
    return streams


def present_writers(state: StreamState) -> dict[str, Token]:
    """The positions of a stream's writers, without those that were removed."""
    seen = {} if state.observation is None else state.observation.writers
    return {
        writer: position
        for writer, position in state.positions.items()
        if writer not in seen or not seen[writer].is_removed
    }


def removed_writers(state: StreamState) -> dict[str, Token]:
    """The positions of writers that were removed: their facts are still there."""
    present = present_writers(state)
    return {name: at for name, at in state.positions.items() if name not in present}


def writer_label(writer: str) -> str:
    """A writer's name for a person; a follower of the linear view knows none."""
    return writer if writer != LINEAR else "(all)"


def held_by(state: StreamState) -> dict[str, WriterState]:
    """The writers that keep the linear position where it is, by name.

    Those with an open reservation, and dead ones that are not fenced off yet.
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
