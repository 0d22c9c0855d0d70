"""How reliable the states of partial rooms are, and how far their completion is.

Source: seed "How do faster joins work?", "Approximation error".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from synrepl.core.errors import Unavailable
from synrepl.rooms import Certainty, StateKey, certainty_of
from synrepl.storage.database import Record, Transaction
from synrepl.storage.rooms.reading.resync_attempts import ServerAttempt, attempts_of_rooms
from synrepl.storage.rooms.tables.partial_rooms import ResyncPhase

#: What a phase does in a second, as long as nothing better is known: events that are fetched, stored or judged.
USUAL_PER_S = 500

#: A room that does not come forward for so long stands still, in seconds.
STANDS_STILL_S = 900

#: Rooms of which :func:`resync_figures` tells more than their number.
SHOWN = 20

#: Servers of each of these rooms.
SHOWN_SERVERS = 5

#: For how long a reader is asked to wait before it tries again, in seconds, at least and at most.
_RETRY_S = (1, 60)

_ORDER = list(Certainty)


class StateNotKnownYet(Unavailable):
    """not all of {what} of room {room_id} is known yet: this server joined the room {age_s} s ago, and is completing its state ({progress}); try again in {retry_after_s} s"""


class ResyncProgressRow(NamedTuple):
    """How far the completion of a partial room is.

    :ivar listed: events of the state that is fetched; :ivar missing: those that were not stored
    :ivar fetched: of these, how many have arrived
    :ivar stored: of these, how many are stored
    :ivar left: events that came since the join and remain to be judged again
    :ivar reason: why it waits; None while nothing is wrong
    :ivar age_s: seconds since the join
    :ivar phase_s: seconds in this phase
    :ivar idle_s: seconds without coming forward
    :ivar wait_s: seconds until it is tried again; 0 if it is worked on
    """

    room_id: str
    phase: ResyncPhase
    listed: int
    missing: int
    fetched: int
    stored: int
    left: int
    failures: int
    reason: str | None
    owner: str | None
    joined_via: str | None
    servers: int
    age_s: float
    phase_s: float
    idle_s: float
    wait_s: float

    @property
    def has_ended(self) -> bool:
        """Whether the room is complete, or abandoned."""
        return self.phase in (ResyncPhase.DONE, ResyncPhase.ABANDONED)

    @property
    def eta_s(self) -> float | None:
        """Seconds until the room is likely to be complete; None if that cannot be said."""
        if self.has_ended:
            return 0.0
        if self.phase is ResyncPhase.IDS or self.reason is not None:
            return None
        to_judge = self.left / USUAL_PER_S
        if self.phase is not ResyncPhase.EVENTS:
            return to_judge + 1.0
        # Each event is fetched, and then stored.
        done, remain = self.fetched + 2 * self.stored, 2 * self.missing
        rate = done / self.phase_s if done and self.phase_s > 1 else USUAL_PER_S
        return max(remain - done, 0) / rate + to_judge + 1.0

    @property
    def stands_still(self) -> bool:
        """Whether it has not come forward for long."""
        return not self.has_ended and self.idle_s >= STANDS_STILL_S

    @property
    def sentence(self) -> str:
        """What is being done, in words."""
        if self.reason is not None:
            return f"waiting after {self.failures} attempts, {self.reason}"
        events = f"{self.fetched + self.stored} of {self.missing} missing events"
        return {
            ResyncPhase.IDS: "asking which events its state has",
            ResyncPhase.EVENTS: f"fetching its state, {events}",
            ResyncPhase.JUDGE: f"judging {self.left} events again",
            ResyncPhase.VERIFY: "verifying its state",
            ResyncPhase.SWAP: "almost done",
            ResyncPhase.DONE: "done",
            ResyncPhase.ABANDONED: "abandoned, as all its users of this server left",
        }[self.phase]


class ResyncFigures(NamedTuple):
    """The partial rooms of a database.

    :ivar standing_still: number of those that have not come forward for long
    :ivar oldest_s: seconds since the first of them was joined; 0 if there is none
    :ivar events: number of events in them that remain to be judged again
    :ivar attempts: by code, numbers of servers of these rooms, by what came of asking them last
    :ivar shown: those that have not come forward for longest
    :ivar asked: of each of these by its ID, what came of asking some of its servers
    """

    rooms: int
    standing_still: int
    oldest_s: float
    events: int
    attempts: Mapping[str, int]
    shown: Sequence[ResyncProgressRow]
    asked: Mapping[str, Sequence[ServerAttempt]]


_PROGRESS = """
    SELECT r.room_id, j.phase, j.listed, j.missing,
           (SELECT count(*) FROM synrepl._fetched_events f WHERE f.room_no = j.room_no), j.stored,
           (SELECT count(*) FROM synrepl._resync_events e
             WHERE e.room_no = j.room_no AND e.full_flags IS NULL),
           j.failures, j.reason, CASE WHEN j.leased_until > now() THEN j.owner END, p.joined_via,
           (SELECT count(*) FROM synrepl._partial_room_servers s WHERE s.room_no = j.room_no),
           extract(epoch FROM coalesce(j.ended_at, now()) - j.began_at)::float8,
           extract(epoch FROM now() - j.phase_at)::float8,
           extract(epoch FROM now() - j.progress_at)::float8,
           greatest(extract(epoch FROM j.next_try - now()), 0)::float8
      FROM synrepl._resync_jobs j JOIN synrepl._rooms r USING (room_no)
      LEFT JOIN synrepl._partial_rooms p USING (room_no)"""


def _progress(row: Record) -> ResyncProgressRow:
    return ResyncProgressRow._make((row[0], ResyncPhase(row[1]), *row[2:]))


def resync_progress(txn: Transaction, room_no: int) -> ResyncProgressRow | None:
    """How far the completion of a room is, or how it ended; None if the room was never partial."""
    txn.execute(f"{_PROGRESS} WHERE j.room_no = %s", (room_no,))
    found = txn.fetchone_or_none()
    return None if found is None else _progress(found)


def resyncs(txn: Transaction, limit: int, *, ended: bool = False) -> list[ResyncProgressRow]:
    """The completions of rooms, those first that began first.

    :param ended: also those that have ended
    """
    where = "" if ended else " WHERE j.ended_at IS NULL"
    txn.execute(
        f"{_PROGRESS}{where} ORDER BY j.ended_at DESC NULLS FIRST, j.began_at LIMIT %s", (limit,)
    )
    return [_progress(row) for row in txn.fetchall()]


def resync_figures(txn: Transaction) -> ResyncFigures:
    """The figures of all partial rooms."""
    txn.execute(
        "SELECT count(*), count(*) FILTER (WHERE progress_at < now() - make_interval(secs => %s)),"
        " coalesce(extract(epoch FROM now() - min(began_at)), 0)::float8,"
        " (SELECT count(*) FROM synrepl._resync_jobs j JOIN synrepl._resync_events e USING (room_no)"
        "   WHERE j.ended_at IS NULL AND e.full_flags IS NULL)"
        " FROM synrepl._resync_jobs WHERE ended_at IS NULL",
        (STANDS_STILL_S,),
    )
    rooms, still, oldest_s, events = txn.fetchone()
    txn.execute(
        "SELECT a.code, count(*) FROM synrepl._resync_attempts a JOIN synrepl._resync_jobs j USING (room_no)"
        " WHERE j.ended_at IS NULL GROUP BY 1 ORDER BY 1"
    )
    codes = {str(code): int(count) for code, count in txn.fetchall()}
    shown: list[ResyncProgressRow] = []
    if rooms:
        txn.execute(
            f"{_PROGRESS} WHERE j.ended_at IS NULL ORDER BY j.progress_at, j.room_no LIMIT %s",
            (SHOWN,),
        )
        shown = [_progress(row) for row in txn.fetchall()]
    asked = attempts_of_rooms(txn, [each.room_id for each in shown], SHOWN_SERVERS)
    return ResyncFigures(int(rooms), int(still), float(oldest_s), int(events), codes, shown, asked)


def progress_json(
    found: ResyncProgressRow, servers_asked: Iterable[ServerAttempt]
) -> dict[str, Any]:
    """The progress of a room as JSON, the same in the status and at the command line.

    :param servers_asked: what came of asking its servers
    """
    return {
        **found._asdict(),
        "phase": found.phase.value,
        "eta_s": found.eta_s,
        "stands_still": found.stands_still,
        "sentence": found.sentence,
        "servers_asked": [each._asdict() for each in servers_asked],
    }


def state_certainty(
    txn: Transaction, room_no: int, keys: Iterable[StateKey] | None, server: str
) -> Certainty:
    """How reliable entries of a room's current state are together.

    :param keys: of the entries; None: the whole state
    :param server: this server
    """
    txn.execute("SELECT FROM synrepl._partial_rooms WHERE room_no = %s", (room_no,))
    if txn.fetchone_or_none() is None:
        return Certainty.FINAL
    if keys is None:
        return Certainty.UNKNOWN
    found = [certainty_of(key, server) for key in keys]
    return max(found, key=_ORDER.index, default=Certainty.FINAL)


def require_known(
    txn: Transaction, room_no: int, keys: Iterable[StateKey] | None, server: str, what: str
) -> Certainty:
    """Check that entries of a room's current state are known.

    :param keys: of the entries; None: the whole state
    :param server: this server
    :param what: the entries, in words
    :raises StateNotKnownYet: they are not
    """
    certainty = state_certainty(txn, room_no, keys, server)
    if certainty is Certainty.UNKNOWN:
        raise not_known_yet(txn, room_no, what)
    return certainty


def not_known_yet(txn: Transaction, room_no: int, what: str) -> StateNotKnownYet:
    """The error that says that something of a partial room is not known yet."""
    progress = resync_progress(txn, room_no)
    assert progress is not None
    least, most = _RETRY_S
    wait_s = progress.eta_s if progress.eta_s is not None else progress.wait_s
    retry_s = int(min(max(wait_s, least), most))
    return StateNotKnownYet(
        what=what,
        room_id=progress.room_id,
        age_s=int(progress.age_s),
        progress=progress.sentence,
        retry_after_s=retry_s,
        retry_after_ms=1000 * retry_s,
    )
