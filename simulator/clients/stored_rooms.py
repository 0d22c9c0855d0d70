"""What is stored of rooms, noted at each commit: who may see which event, and who was what when."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from simulator.rooms.server import SimulatedServer
from synrepl.positions.vector import PositionVector
from synrepl.rooms import EventAudience, EventOrdering, Sight, StateKey, Viewer, visible_to_user
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.heads import current_state
from synrepl.storage.rooms.tables.numbers import require_room
from synrepl.storage.rooms.visibility.audience import unpack_audience


class NotedEvent(NamedTuple):
    """An event as it was stored.

    :ivar audience: None if nobody may see it
    :ivar memberships: of the users after the event
    """

    event_id: str
    room_id: str
    writer: str | None
    ordering: EventOrdering
    prev_event_ids: Collection[str]
    audience: EventAudience | None
    memberships: Mapping[str, str]
    body: str | None

    @property
    def is_live(self) -> bool:
        """Whether it did not come as history."""
        return self.ordering.stream > 0

    def is_visible(self, user: str) -> bool:
        """Whether the pure rules show it to a user who is, or was, in the room."""
        if self.audience is None:
            return False
        verdict = visible_to_user(self.audience, Viewer(user), self.memberships.get(user, "leave"))
        return verdict.sight is not Sight.HIDDEN

    def is_covered(self, vector: PositionVector) -> bool:
        """Whether a vector covers it."""
        return not self.is_live or self.ordering.stream <= vector[self.writer or ""]


class NotedMemberships(NamedTuple):
    """The memberships in a room from a commit on.

    :ivar first: token of the first of its facts about the room
    :ivar last: of the last one
    """

    writer: str
    first: int
    last: int
    memberships: Mapping[str, str]


class StoredRooms:
    """Notes what each commit stores.

    :ivar events: by ID, also those that are not stored any more
    :ivar by_room: the same by room, in the order of their coming
    :ivar purged: IDs of events that were purged
    """

    def __init__(self, server: SimulatedServer) -> None:
        self._server = server
        self._newest = self._oldest = 0
        self._last_facts: dict[str, int] = {}
        self.events: dict[str, NotedEvent] = {}
        self.by_room: dict[str, list[NotedEvent]] = defaultdict(list)
        self.purged: set[str] = set()
        self._memberships: dict[str, list[NotedMemberships]] = defaultdict(list)

    def committed(self) -> None:
        """Note what a transaction has stored."""
        self._server.operator.run("note events", self._note)

    def _note(self, txn: Transaction) -> None:
        txn.execute(
            "SELECT e.event_id, r.room_id, f.writer, e.topological, e.stream_id, e.audience, e.sender,"
            " k.type, k.state_key, j.raw,"
            " (SELECT coalesce(json_object_agg(u.state_key, (m.audience >> 11) & 7), '{}'::json)"
            "    FROM synrepl._room_keys u JOIN synrepl._room_events m"
            "      ON m.event_no = synrepl.state_entry(e.room_no, e.group_after, u.slot)"
            "   WHERE u.room_no = e.room_no AND u.type = 'm.room.member')"
            " FROM synrepl._room_events e JOIN synrepl._rooms r USING (room_no)"
            " JOIN synrepl._room_event_json j USING (event_no)"
            " LEFT JOIN synrepl._room_keys k ON k.room_no = e.room_no AND k.slot = e.slot"
            " LEFT JOIN synrepl.events f ON f.stream_id = e.stream_id AND f.kind = 'ev'"
            " WHERE e.stream_id > %s OR e.stream_id < %s ORDER BY e.stream_id",
            (self._newest, self._oldest),
        )
        for row in txn.fetchall():
            event_id, room_id, writer, topological, stream, audience, sender, *rest = row
            kind, state_key, raw, numbers = rest
            fields = json.loads(bytes(raw))
            target = state_key if kind == "m.room.member" else None
            noted = NotedEvent(
                event_id,
                room_id,
                writer,
                EventOrdering(topological, stream),
                [each if isinstance(each, str) else each[0] for each in fields["prev_events"]],
                unpack_audience(audience, event_id, sender, target),
                {user: _MEMBERSHIPS[number] for user, number in numbers.items()},
                fields["content"].get("body"),
            )
            self.events[event_id] = noted
            self.by_room[room_id].append(noted)
            self.purged.discard(event_id)
            self._newest, self._oldest = max(self._newest, stream), min(self._oldest, stream)
        self._note_memberships(txn)

    def _note_memberships(self, txn: Transaction) -> None:
        txn.execute(
            "SELECT room_id, writer, min(stream_id), max(stream_id) FROM synrepl.events"
            " WHERE stream_id > %s GROUP BY room_id, writer",
            (max(self._last_facts.values(), default=0),),
        )
        for room_id, writer, first, last in txn.fetchall():
            txn.execute(
                "SELECT m.user_id, m.membership FROM synrepl._memberships m"
                " JOIN synrepl._rooms r USING (room_no) WHERE r.room_id = %s",
                (room_id,),
            )
            noted = NotedMemberships(writer, first, last, dict(txn.fetchall()))
            self._memberships[room_id].append(noted)
            self._last_facts[writer] = max(self._last_facts.get(writer, 0), last)

    def were_purged(self, room_id: str) -> None:
        """Note which events of a room are not stored any more."""

        def work(txn: Transaction) -> set[str]:
            txn.execute(
                "SELECT e.event_id FROM synrepl._room_events e JOIN synrepl._rooms r USING (room_no)"
                " WHERE r.room_id = %s AND e.stream_id IS NOT NULL",
                (room_id,),
            )
            return {event_id for (event_id,) in txn.fetchall()}

        here = self._server.operator.run("what is left", work)
        known = {each.event_id for each in self.by_room[room_id]}
        self.purged |= known - here

    def current_state(self, room_id: str) -> dict[StateKey, str]:
        """The current state of a room."""

        def work(txn: Transaction) -> dict[StateKey, str]:
            room_no = require_room(txn, room_id).room_no
            return {each.key: each.event_id for each in current_state(txn, room_no)}

        return self._server.operator.run("current state", work)

    # -- what users may know --------------------------------------------------------------

    def visible(self, room_id: str, user: str) -> Iterator[NotedEvent]:
        """The events of a room that a user may see, with those that were purged."""
        return (each for each in self.by_room[room_id] if each.is_visible(user))

    def membership(self, room_id: str, user: str, vector: PositionVector) -> str | None:
        """A user's membership as of a vector; None if the vector covers a part of a commit only."""
        membership = "leave"
        for each in self._memberships[room_id]:
            at = vector[each.writer]
            if each.first <= at < each.last:
                return None
            if each.last <= at:
                membership = each.memberships.get(user, "leave")
        return membership

    def joined_rooms(self, user: str, vector: PositionVector) -> dict[str, str | None]:
        """The memberships of a user in all rooms as of a vector."""
        return {room_id: self.membership(room_id, user, vector) for room_id in self._memberships}

    def is_all_covered(self, vector: PositionVector) -> bool:
        """Whether a vector covers all facts: a process may be ahead in one writer and behind in another."""
        return all(vector[writer] >= last for writer, last in self._last_facts.items())


_MEMBERSHIPS = ("leave", "join", "invite", "ban", "knock")
