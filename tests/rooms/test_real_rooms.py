"""Rooms of real servers: replaying their events comes to the states that the servers kept.

The recordings are of Synapse 1.11.1, 1.43.0 and 1.163.2, which federated with each other. ``vectors/corpus`` has a
part of them; ``SYNREPL_TEST_CORPUS`` may name a folder with more.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import TestCase

from synrepl.rooms.chains import auth_dependencies
from synrepl.rooms.event import Event, event_of
from synrepl.rooms.ordering import topological_sort
from synrepl.rooms.room import Room
from synrepl.rooms.state import StateKey
from synrepl.rooms.state_groups import StateGroup, read_group
from synrepl.rooms.state_map import Delta
from synrepl.rooms.versions import room_version
from tests.rooms.vector_files import VECTORS, extra_folder

_MORE = extra_folder("SYNREPL_TEST_CORPUS")

SERVERS = ("1.11.1", "1.43.0", "1.163.2")

FORKED = "!SbFNrMnTtXWUe"

#: Events at which a server kept another state than what follows from the events, all in one room.
#:
#: - 1.11.1 resolved the fork before ``$Mn97X`` otherwise than 1.43.0 did at the same event, and than the
#:   specification says: it let a join of somebody who was kicked stand; the others follow that event.
#: - 1.43.0 got ``$0zrcY`` before the events that it follows. It filled the gap with a state that the
#:   other server sent, in which newer join rules are missing.
KNOWN = {
    "1.11.1": "$Mn97X $hUu1X $ep_-m $ZMv5P $5ClU- $of8Ud $YX04v $dbZcs $mmPyN $JzXVB $Prb6c $Z5OkE $G_zDY",
    "1.43.0": "$0zrcY $A5ThP $rn4o5",
}


class Recorded(NamedTuple):
    """A room as a server had it.

    :ivar room: the row of ``rooms.jsonl``
    :ivar rows: those of ``events.jsonl``, in the server's stream order
    """

    server: str
    room: dict[str, Any]
    rows: list[dict[str, Any]]

    @property
    def room_id(self) -> str:
        return str(self.room["room_id"])

    @property
    def current_state(self) -> dict[StateKey, str]:
        return {
            (row["type"], row["state_key"]): row["event_id"] for row in self.room["current_state"]
        }

    def fetch(self, group: int) -> StateGroup:
        """A state group; these servers do not say how long a chain is."""
        prev, chain = self.room["state_groups"][str(group)]["prev"], 0
        below = prev
        while below is not None:
            below, chain = self.room["state_groups"][str(below)]["prev"], chain + 1
        delta = self.room["state_groups"][str(group)]["delta"]
        entries = {(kind, state_key): event_id for kind, state_key, event_id in delta}
        return StateGroup(prev, Delta(entries), chain)

    def state(self, group: int) -> dict[StateKey, str]:
        return read_group(group, self.fetch).as_dict()


def recorded_rooms() -> Iterator[Recorded]:
    for server in SERVERS:
        events: dict[str, list[dict[str, Any]]] = {}
        for row in _lines(server, "events"):
            events.setdefault(row["room_id"], []).append(row)
        for room in _lines(server, "rooms"):
            yield Recorded(server, room, events[room["room_id"]])


def _lines(server: str, kind: str) -> Iterator[dict[str, Any]]:
    path = VECTORS / "corpus" / f"rooms_{server}_{kind}.jsonl.gz"
    if _MORE is not None:
        path = _MORE / server / f"{kind}.jsonl.gz"
    with gzip.open(path, "rt") as file:
        for line in file:
            yield json.loads(line)


def replayed(recorded: Recorded) -> Room:
    """The room, from the events. Where the server purged the oldest, from the state that it kept there."""
    room = Room(room_version(recorded.room["room_version"]), recorded.room_id)
    events = {row["event_id"]: event_of(row["event"], room.version) for row in recorded.rows}
    complete = all(parent in events for event in events.values() for parent in event.prev_event_ids)
    if not complete:
        outliers = [events[row["event_id"]] for row in recorded.rows if row["outlier"]]
        for event in topological_sort(outliers, dependencies=auth_dependencies).events:
            room.receive_outlier(event)
    for row in recorded.rows:
        event = events[row["event_id"]]
        if complete or not row["outlier"]:
            if _starts(event, events):
                # It is no state event, so its group is the state before it, too.
                assert event.state_key is None
                room.receive_with_state(event, recorded.state(row["state_group"]))
            else:
                room.receive(event, live=False)
    return room


def _starts(event: Event, events: dict[str, Event]) -> bool:
    return any(parent not in events for parent in event.prev_event_ids)


class RecordedRooms(TestCase):
    def test_states_equal_those_of_the_recorded_server(self) -> None:
        """At every event and at every state group, and in the end."""
        different: dict[str, set[str]] = {}
        states = groups = 0
        for recorded in recorded_rooms():
            where = (recorded.server, recorded.room_id)
            with self.subTest(where):
                room = replayed(recorded)
                self.assertFalse(room.waiting, where)
                for row in recorded.rows:
                    event_id = row["event_id"]
                    judged = room[event_id]
                    self.assertEqual(judged.accepted, row["rejected"] is None, event_id)
                    if row["state_group"] is not None:
                        states += 1
                        if judged.state_after != recorded.state(row["state_group"]):
                            self.assertTrue(recorded.room_id.startswith(FORKED), where)
                            different.setdefault(recorded.server, set()).add(event_id[:6])
                        self.assertEqual(judged.ordering.topological, row["topological_ordering"])
                groups += self.groups(recorded, room)
        self.assertEqual(different, {server: set(ids.split()) for server, ids in KNOWN.items()})
        self.assertGreater(states, 1000)
        self.assertGreater(groups, 600)

    def groups(self, recorded: Recorded, room: Room) -> int:
        """A group is the state before or after the event that it was made for."""
        known = KNOWN.get(recorded.server, "") if recorded.room_id.startswith(FORKED) else ""
        count = 0
        for name, group in recorded.room["state_groups"].items():
            event_id = group["event_id"]
            # Some are for events that were never sent.
            if event_id in room and room.has_state(event_id) and event_id[:6] not in known:
                judged, state = room[event_id], recorded.state(int(name))
                self.assertTrue(
                    judged.state_before == state or judged.state_after == state, (name, event_id)
                )
                count += 1
        return count

    def test_the_current_state_equals_that_of_the_recorded_server(self) -> None:
        abandoned = 0
        for recorded in recorded_rooms():
            room = replayed(recorded)
            where = (recorded.server, recorded.room_id)
            self.assertEqual(
                room.forward_extremities, set(recorded.room["forward_extremities"]), where
            )
            if recorded.room["current_state"]:
                self.assertEqual(room.current_state(), recorded.current_state, where)
            else:
                # All of the server's users have left: it keeps no current state any more.
                abandoned += 1
                members = {
                    room[event_id].event.membership
                    for (kind, _), event_id in room.current_state().items()
                    if kind == "m.room.member"
                }
                self.assertNotIn("join", members, where)
        self.assertEqual(abandoned, 2)
