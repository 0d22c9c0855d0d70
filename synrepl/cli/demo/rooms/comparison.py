"""Compares what two servers know of a room: states, verdicts, and timelines."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.cli.configured_database import opened
from synrepl.cli.demo.rooms.servers import DemoServer
from synrepl.cli.terminal import counted
from synrepl.services.rooms.store import RoomStore
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.events import EventFlags

_VERDICT = int(EventFlags.REJECTED | EventFlags.SOFT_FAILED)
_NOT_FINAL = int(EventFlags.PARTIAL | EventFlags.UNCONFIRMED)

#: Differences of one kind that are named; further ones are counted.
_NAMED = 3


class RoomCopy(NamedTuple):
    """What one server has of a room.

    :ivar verdicts: of each event, also of those that only others refer to: whether it is rejected or soft-failed
    :ivar timeline: the events since the join, in order; the join is the first
    :ivar unfinished: number of events whose verdict may still change
    """

    current: Mapping[Any, str]
    verdicts: Mapping[str, int]
    timeline: list[str]
    states: Mapping[str, Mapping[Any, str]]
    unfinished: int


class ComparedCopies(NamedTuple):
    """The outcome of comparing.

    :ivar problems: a sentence each
    :ivar state: entries of the current state
    :ivar events: events with verdicts at both servers
    :ivar timeline: events since the join, at each of which the states were compared
    """

    problems: list[str]
    state: int
    events: int
    timeline: int

    def to_json(self) -> dict[str, Any]:
        """The figures as data."""
        figures = self._asdict()
        del figures["problems"]
        return figures


async def read_copy(reactor: Any, server: DemoServer, room_id: str, join_id: str) -> RoomCopy:
    """What a server has of a room.

    :param join_id: of the event since which both have all events
    """
    async with opened(reactor, server.dsn) as database:
        store = RoomStore(database)
        verdicts, timeline, unfinished = await _events(database, room_id, join_id)
        states = {each: await store.state_ids_at(each, rejected=True) for each in timeline}
        current = await store.current_state_ids(room_id)
    return RoomCopy(current, verdicts, timeline, states, unfinished)


async def _events(
    database: PostgresDatabase, room_id: str, join_id: str
) -> tuple[dict[str, int], list[str], int]:
    def read(txn: Transaction) -> tuple[dict[str, int], list[str], int]:
        txn.execute(
            "SELECT e.event_id, e.flags, e.topological, e.stream_id FROM synrepl._room_events e"
            " JOIN synrepl._rooms r USING (room_no) WHERE r.room_id = %s",
            (room_id,),
        )
        rows = txn.fetchall()
        verdicts = {event_id: flags & _VERDICT for event_id, flags, *_ in rows}
        unfinished = sum(bool(flags & _NOT_FINAL) for _, flags, *_ in rows)
        ordered = sorted((row[2], row[3], row[0]) for row in rows if row[3] is not None)
        ids = [event_id for *_, event_id in ordered]
        return verdicts, ids[ids.index(join_id) :], unfinished

    return await database.run("compare a room", read, read_only=True)


def compare(one: RoomCopy, two: RoomCopy) -> ComparedCopies:
    """Compare two copies of a room."""
    both = one.verdicts.keys() & two.verdicts.keys()
    problems = [
        *_differences("the current state", one.current, two.current),
        *_differences(
            "the verdicts", {e: one.verdicts[e] for e in both}, {e: two.verdicts[e] for e in both}
        ),
        *_only("timeline", one.timeline, two.timeline),
        *_only("timeline", two.timeline, one.timeline, "two"),
        *_missing(two),
    ]
    if unfinished := one.unfinished + two.unfinished:
        problems.append(f"{counted(unfinished, 'verdict')} not final")
    for event_id in one.timeline:
        if event_id in two.states:
            where = f"the state after {event_id}"
            problems += _differences(where, one.states[event_id], two.states[event_id])
    return ComparedCopies(problems, len(one.current), len(both), len(one.timeline))


def _differences(what: str, one: Mapping[Any, Any], two: Mapping[Any, Any]) -> Iterator[str]:
    """What differs between two mappings."""
    keys = [key for key in one.keys() | two.keys() if one.get(key) != two.get(key)]
    if keys:
        named = ", ".join(
            f"{key}: {one.get(key)} at one, {two.get(key)} at two" for key in keys[:_NAMED]
        )
        yield f"{counted(len(keys), 'difference')} in {what}, such as {named}"


def _only(
    what: str, here: Collection[str], there: Collection[str], label: str = "one"
) -> Iterator[str]:
    known = set(there)
    extra = [each for each in here if each not in known]
    if extra:
        yield f"{counted(len(extra), 'event')} in the {what} of {label} only, such as {extra[0]}"


def _missing(copy: RoomCopy) -> Iterator[str]:
    """Events of the state that the joined server does not have."""
    lacking = [each for each in copy.current.values() if each not in copy.verdicts]
    if lacking:
        yield f"{counted(len(lacking), 'event')} of the state not stored, such as {lacking[0]}"
