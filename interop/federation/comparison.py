"""Compares a room of ours with the database of a real server, event by event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg2

from interop.federation.client import Client
from interop.federation.our_server import OurServer
from interop.federation.synapse_server import SynapseServer
from interop.matrix_client import q
from interop.report import Section
from synrepl.core.errors import Unavailable
from synrepl.storage.rooms.tables.events import EventFlags

State = Mapping[tuple[str, str], str]

#: How many of our states are requested at the same time.
_AT_ONCE = 4

#: Events in a page of history, and pages of one room.
_PAGE, _MOST_PAGES = 100, 200

_EVENTS = """
    SELECT e.event_id, e.outlier, r.event_id IS NOT NULL,
           coalesce((j.internal_metadata::jsonb ->> 'soft_failed')::boolean, false), g.state_group
      FROM events e JOIN event_json j USING (event_id) LEFT JOIN rejections r USING (event_id)
      LEFT JOIN event_to_state_groups g USING (event_id)
     WHERE e.room_id = %s"""
_EDGES = """
    SELECT g.id, x.prev_state_group FROM state_groups g
      LEFT JOIN state_group_edges x ON x.state_group = g.id WHERE g.room_id = %s"""
_ENTRIES = (
    "SELECT state_group, type, state_key, event_id FROM state_groups_state WHERE room_id = %s"
)
_CURRENT = "SELECT type, state_key, event_id FROM current_state_events WHERE room_id = %s"


class HistoryWithoutEnd(Unavailable):
    """the history of {room_id} has no end after {pages} pages"""


class _TheirEvent(NamedTuple):
    is_outlier: bool
    verdict: str
    group: int | None


class _TheirRoom:
    """A room in the database of a real server.

    :ivar events: by ID
    :ivar current: the current state
    """

    def __init__(self, dsn: str, room: str) -> None:
        with _reading(dsn) as ask:
            self.events = {
                event_id: _TheirEvent(outlier, _verdict(rejected, soft_failed), group)
                for event_id, outlier, rejected, soft_failed, group in ask(_EVENTS, room)
            }
            self._edges: Mapping[int, int | None] = dict(ask(_EDGES, room))
            self._entries: dict[int, dict[tuple[str, str], str]] = {}
            for group, kind, key, event_id in ask(_ENTRIES, room):
                self._entries.setdefault(group, {})[kind, key] = event_id
            self.current: State = {(kind, key): e for kind, key, e in ask(_CURRENT, room)}

    def state(self, group: int) -> State:
        """The state of a group, which is stored as what differs from another one."""
        chain: list[Mapping[tuple[str, str], str]] = []
        at: int | None = group
        while at is not None:
            chain.append(self._entries.get(at, {}))
            at = self._edges.get(at)
        found: dict[tuple[str, str], str] = {}
        for each in reversed(chain):
            found.update(each)
        return found


def page_back(client: Client, room: str) -> int:
    """Read the whole history of a room, page by page; the number of events.

    What is not here is fetched from other servers meanwhile.

    :raises ClientRefused: :raises OSError: :raises HistoryWithoutEnd:
    """
    count, at = 0, ""
    for _ in range(_MOST_PAGES):
        page = client.ask("GET", f"/rooms/{q(room)}/messages?dir=b&limit={_PAGE}{at}")
        count += len(page["chunk"])
        if not page.get("end"):
            return count
        at = f"&from={q(page['end'])}"
    raise HistoryWithoutEnd(room_id=room, pages=_MOST_PAGES)


def compare(section: Section, ours: OurServer, theirs: SynapseServer, room: str) -> None:
    """Compare the verdict on each event and the state after it, and the current states."""
    peer = _TheirRoom(theirs.dsn, room)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        mine = dict(zip(peer.events, pool.map(ours.event, peer.events), strict=True))
        missing = [each for each, found in mine.items() if found is None]
        verdicts = [
            f"{each}: {_our_verdict(found['flags'])} here, {peer.events[each].verdict} there"
            for each, found in mine.items()
            if found is not None and _our_verdict(found["flags"]) != peer.events[each].verdict
        ]
        with_state = [
            (event_id, each.group)
            for event_id, each in peer.events.items()
            if not each.is_outlier and each.group is not None and _has_state(mine[event_id])
        ]
        states = pool.map(lambda each: ours.state(room, each[0]), with_state)
        differing = [
            f"{event_id}: {_some_difference(found, peer.state(group))}"
            for (event_id, group), found in zip(with_state, states, strict=True)
            if found != peer.state(group)
        ]
    events, groups = len(peer.events), len({group for _, group in with_state})
    _count(section, f"events of the real server, {len(missing)} missing here", events, missing)
    refused = sum(each.verdict != "accepted" for each in peer.events.values())
    _count(section, f"verdicts compared, {refused} of them refusals", events, verdicts)
    left_out = events - len(with_state)
    claim = f"states after events compared ({groups} state groups; {left_out} events have none)"
    _count(section, claim, len(with_state), differing)
    current = ours.state(room)
    keys = current.keys() | peer.current.keys()
    other = [str(key) for key in keys if current.get(key) != peer.current.get(key)]
    _count(section, "entries of the current state compared", len(peer.current), other)


def _count(section: Section, claim: str, count: int, faults: Sequence[str]) -> None:
    detail = f": {'; '.join(faults[:3])}" if faults else ""
    section.check(f"{count:,} {claim}", count > 0 and not faults, f"{len(faults)} differ{detail}")


def _some_difference(ours: State, theirs: State) -> str:
    keys = [key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)]
    shown = "; ".join(f"{k}: {ours.get(k)} here, {theirs.get(k)} there" for k in keys[:2])
    return f"{len(keys)} entries: {shown}"


def _has_state(event: Mapping[str, Any] | None) -> bool:
    return event is not None and not event["flags"] & EventFlags.OUTLIER


def _our_verdict(flags: int) -> str:
    return _verdict(bool(flags & EventFlags.REJECTED), bool(flags & EventFlags.SOFT_FAILED))


def _verdict(rejected: bool, soft_failed: bool) -> str:
    return "rejected" if rejected else "soft-failed" if soft_failed else "accepted"


@contextmanager
def _reading(dsn: str) -> Iterator[Any]:
    """A function from statement and room to rows, all of one snapshot."""
    connection = psycopg2.connect(dsn)
    try:
        connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
        with connection.cursor() as cursor:

            def ask(statement: str, room: str) -> list[tuple[Any, ...]]:
                cursor.execute(statement, (room,))
                return cursor.fetchall()

            yield ask
    finally:
        connection.close()
