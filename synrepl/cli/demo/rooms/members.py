"""A room with many members, as its server signed it: a file that ``synrepl rooms import --file`` reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from signedjson.types import SigningKey

from synrepl.rooms import Event, EventBuilder, EventDraft, StateKey, room_version, server_of

VERSION = "11"

#: One event in so many is a message.
MESSAGE_EVERY = 10

#: When the rooms were created, in milliseconds since 1970: 20 November 2026.
_CREATED_MS = 1_795_132_800_000


class LargeRoom:
    """Makes the events of a room: a member joins after the other, and some say something.

    :param creator: the user who may do everything; the members are of the same server
    """

    def __init__(self, room_id: str, creator: str, members: int, key: SigningKey) -> None:
        self.room_id = room_id
        self._creator = creator
        self._server = server_of(creator)
        self._members = members
        self._builder = EventBuilder(room_version(VERSION), self._server, key)
        self._state: dict[StateKey, Event] = {}
        self._last: tuple[Event, ...] = ()
        self._count = 0

    def member(self, number: int) -> str:
        """The user ID of a member; numbers begin at 1."""
        return f"@member{number}:{self._server}"

    def events(self) -> Iterator[Event]:
        """The events, causes first."""
        creator = self._creator
        yield self._made("m.room.create", creator, {"room_version": VERSION}, "")
        yield self._made("m.room.member", creator, {"membership": "join"}, creator)
        yield self._made("m.room.power_levels", creator, {"users": {creator: 100}}, "")
        yield self._made("m.room.join_rules", creator, {"join_rule": "public"}, "")
        visible = {"history_visibility": "shared"}
        yield self._made("m.room.history_visibility", creator, visible, "")
        yield self._made("m.room.name", creator, {"name": f"{self._members:,} members"}, "")
        for number in range(1, self._members):
            user = self.member(number)
            yield self._made("m.room.member", user, {"membership": "join"}, user)
            if number % MESSAGE_EVERY == 0:
                yield self._made("m.room.message", user, {"msgtype": "m.text", "body": "I am here"})

    def _made(
        self, kind: str, sender: str, content: Mapping[str, Any], state_key: str | None = None
    ) -> Event:
        draft = EventDraft(kind, sender, content, _CREATED_MS + self._count * 1000, state_key)
        cited = [self._state[key] for key in self._builder.auth_keys(draft) if key in self._state]
        event = self._builder.assemble(draft, self.room_id, self._last, cited)
        if state_key is not None:
            self._state[kind, state_key] = event
        self._last = (event,)
        self._count += 1
        return event


def write_rooms(path: Path, rooms: list[LargeRoom]) -> int:
    """Write the events of rooms to a file, one per line; their number."""
    count = 0
    with path.open("wb") as file:
        for room in rooms:
            for event in room.events():
                file.write(event.raw + b"\n")
                count += 1
    return count
