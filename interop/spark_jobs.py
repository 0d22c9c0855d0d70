"""Runs the Spark jobs of rooms on the databases of a real server and of ours, which imported its rooms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from interop.matrix_client import Server, User, q
from interop.report import Section, Table
from interop.synrepl_processes import REPOSITORY
from synrepl.pipeline.rooms.compaction import compact_groups
from synrepl.pipeline.rooms.divergence import diverging_rooms
from synrepl.pipeline.rooms.growth import room_growth
from synrepl.pipeline.rooms.reading.open import open_rooms
from synrepl.pipeline.rooms.state_at_every_event import state_at_every_event
from synrepl.pipeline.rooms.state_groups import check_groups
from synrepl.pipeline.rooms.tables import RoomFrames
from synrepl.pipeline.rooms.verify import VerifyOptions, verify_rooms
from synrepl.pipeline.rooms.visibility import visible_events
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import open_session

#: Events of a part: few, so that rooms are cut.
_PART_EVENTS = 20

_VISIBILITIES = ("invited", "joined", "shared", "world_readable")

_STORY = """\
In rooms of each history visibility, users join, leave and join again while another talks and redacts, and are asked for
all that they see (`/messages`). Later, with the server stopped, the jobs run on its database, and on ours with the same rooms."""


@dataclass(frozen=True, slots=True)
class SeenRoom:
    """What one user of the server saw of a room.

    :ivar event_ids: of all pages of ``/messages``
    """

    room_id: str
    user_id: str
    event_ids: frozenset[str]


def rooms_seen(server: Server) -> list[SeenRoom]:
    """Make rooms that users see different parts of, and ask for these."""
    talker, lasting, coming, leaving = (
        User(server, f"seen-{name}") for name in ("talker", "lasting", "coming", "leaving")
    )
    found = []
    for visibility in _VISIBILITIES:
        room = _room(talker, visibility)
        lasting.post("join", f"/rooms/{q(room)}/join", {})
        _talk(talker, room, "all of this")
        for user in (coming, leaving):
            user.post("join", f"/rooms/{q(room)}/join", {})
        _talk(talker, room, "while they are there")
        for user in (coming, leaving):
            user.post("leave", f"/rooms/{q(room)}/leave", {})
        _talk(talker, room, "while they are away")
        coming.post("join", f"/rooms/{q(room)}/join", {})
        _talk(talker, room, "after one came again")
        found += [
            SeenRoom(room, user.id, frozenset(_pages(user, room)))
            for user in (talker, lasting, coming, leaving)
        ]
    return found


def _room(user: User, visibility: str) -> str:
    content = {"history_visibility": visibility}
    state = {"type": "m.room.history_visibility", "state_key": "", "content": content}
    body = {"preset": "public_chat", "initial_state": [state]}
    room: str = user.post("create a room", "/createRoom", body)["room_id"]
    return room


def _talk(user: User, room: str, what: str) -> None:
    for number in range(4):
        event_id = user.send(room, {"msgtype": "m.text", "body": f"{what} {number}"})
        if number == 2 and event_id is not None:
            user.put("redact", f"/rooms/{q(room)}/redact/{q(event_id)}/{q(event_id)}", {})


def _pages(user: User, room: str) -> Iterator[str]:
    """The IDs of all events that the user is shown."""
    path = f"/rooms/{q(room)}/messages?dir=b&limit=10"
    at = ""
    while True:
        page = user.call("read a room", "GET", path + at)
        yield from (event["event_id"] for event in page["chunk"])
        if not page["chunk"] or "end" not in page:
            return
        at = f"&from={q(page['end'])}"


def section(
    title: str,
    theirs: str,
    ours: str,
    keys: Mapping[str, Mapping[str, str]],
    seen: Sequence[SeenRoom],
) -> Section:
    """Run the jobs; their section of the report.

    :param theirs: the DSN of the server's database
    :param ours: the DSN of the database with the imported rooms
    :param keys: the server's public keys, which it does not store itself, by server name and key ID
    """
    told = Section(title, _STORY.splitlines())
    options = SessionOptions(master="local[2]", python_path=(REPOSITORY,))
    with open_session(options) as spark, open_rooms(spark, theirs) as server:
        verified = verify_rooms(
            server, VerifyOptions(signatures=True, published=keys), size=_PART_EVENTS
        )
        _no_rows(told, "verify-rooms names nothing, signatures included", verified)
        _states(told, spark, server, ours)
        _visibility(told, server, tuple(keys), seen)
        findings = check_groups(server).where("finding <> 'unreferenced'")
        _no_rows(told, "state-groups names nothing but what no event has", findings)
        compacted = compact_groups(server).drop("entries").collect()
        equal = sum(row.digest_before == row.digest_after for row in compacted)
        told.check(
            "compaction: the digests of all groups are equal",
            bool(compacted) and equal == len(compacted),
            f"{equal:,}",
        )
        _growth(told, server)
    return told


def _no_rows(told: Section, claim: str, rows: DataFrame) -> None:
    found = rows.take(3)
    told.check(claim, not found, "; ".join(map(str, found)))


def _states(told: Section, spark: SparkSession, server: RoomFrames, ours: str) -> None:
    """Compare the states after all events, and all else of the rooms, with those in our database."""
    computed = state_at_every_event(server, _PART_EVENTS)
    here = _digests(computed)
    resolved = computed.where("resolved").count()
    with open_rooms(spark, ours) as imported:
        there = _digests(state_at_every_event(imported, _PART_EVENTS))
        _no_rows(
            told, "divergence names nothing of both databases", diverging_rooms(server, imported)
        )
    told.tables.append(
        (
            "States:",
            Table(("events", "whose branches had different states"), [(len(here), resolved)]),
        )
    )
    told.check(
        "state-at-every-event gives the same states for both databases",
        bool(here) and here == there,
        f"{len(here):,} events",
    )


def _digests(states: DataFrame) -> dict[str, tuple[Any, ...]]:
    rows = states.select("event_id", "accepted", "size", "digest").collect()
    return {row.event_id: (row.accepted, row.size, bytes(row.digest)) for row in rows}


def _visibility(
    told: Section, server: RoomFrames, names: Sequence[str], seen: Sequence[SeenRoom]
) -> None:
    """Compare what the job says with what the server showed."""
    intervals: dict[tuple[str, str], list[Row]] = {}
    for row in visible_events(server, names).collect():
        intervals.setdefault((row.room_id, row.user_id), []).append(row)
    events: dict[str, list[Row]] = {}
    columns = ("room_id", "event_id", "type", "state_key", "stream_ordering")
    for row in server.events.select(*columns).orderBy("stream_ordering").collect():
        events.setdefault(row.room_id, []).append(row)
    shown = hidden = 0
    wrong = []
    for each in seen:
        known = _until_the_user_left(events[each.room_id], each.user_id, each.event_ids)
        visible = {
            event.event_id
            for event, row in product(known, intervals[each.room_id, each.user_id])
            if row.first_ordering <= event.stream_ordering <= row.last_ordering
            and row.sight != "hidden"
        }
        shown += len(visible)
        hidden += len(known) - len(visible)
        wrong += [f"{each.user_id}: {differing}" for differing in visible ^ each.event_ids]
    told.check("users see of rooms what visibility says", not wrong, "; ".join(wrong[:3]))
    told.check("events were shown and hidden", shown > 0 and hidden > 0, f"{shown}, {hidden}")


def _until_the_user_left(events: Sequence[Row], user: str, seen: frozenset[str]) -> list[Row]:
    """The events of a room up to the last that the user was asked about.

    Of a user who left, ``/messages`` ends at the leave.
    """
    member = [
        place
        for place, event in enumerate(events)
        if event.type == "m.room.member" and event.state_key == user
    ]
    last = max(place for place, event in enumerate(events) if event.event_id in seen)
    has_left = last == member[-1]
    return list(events[: last + 1]) if has_left else list(events)


def _growth(told: Section, server: RoomFrames) -> None:
    """Compare the totals of the last day with the tables."""
    totals = {
        row.measure: row.total
        for row in room_growth(server).where("NOT is_forecast").orderBy("day").collect()
    }
    rooms, events = server.rooms.count(), server.events.count()
    told.check(
        "growth has the number of rooms and events",
        (totals["rooms"], totals["events"]) == (rooms, events),
        f"{rooms} and {events}",
    )
