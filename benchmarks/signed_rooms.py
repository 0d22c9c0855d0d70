"""Large rooms of one server, whose events it has signed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from signedjson.types import SigningKey

from benchmarks.room_shapes.histories import linear
from synrepl.rooms import Event, EventBuilder, EventDraft, StateKey, room_version

#: The type of entries of the state that are no memberships.
OTHER = "com.example.entry"

_VERSION = "10"
_FIRST_MS = 1_700_000_000_000
_CONTENTS: dict[str, dict[str, Any]] = {
    "m.room.join_rules": {"join_rule": "public"},
    "m.room.history_visibility": {"history_visibility": "shared"},
}


class RoomSize(NamedTuple):
    """How large a room is.

    :ivar members: all of whom join, one after the other
    :ivar changes: of memberships after that
    :ivar others: entries of the state that are no memberships
    """

    members: int
    changes: int
    others: int = 0

    @property
    def events(self) -> int:
        """Number of events; all of them set state."""
        return self.members + self.changes + self.others + len(_CONTENTS) + 3


def signed_room(room_id: str, server: str, key: SigningKey, size: RoomSize) -> Iterator[Event]:
    """The events of a room, each following the last, and citing what authorises it.

    :param server: of all users
    """
    builder = EventBuilder(room_version(_VERSION), server, key)
    state: dict[StateKey, Event] = {}
    last: tuple[Event, ...] = ()
    creator = f"@creator:{server}"
    keys = [step.key for step in linear(size.members, size.members + size.changes)]
    keys += [(OTHER, str(number)) for number in range(size.others)]
    for number, (kind, state_key) in enumerate(keys):
        sender = creator
        content: dict[str, Any] = {"number": number}
        if kind == "m.room.member":
            sender = state_key = f"{state_key.partition(':')[0]}:{server}"
            content = {"membership": "join", "displayname": f"{sender} at {number}"}
        elif kind == "m.room.create":
            content = {"creator": creator, "room_version": _VERSION}
        elif kind == "m.room.power_levels":
            content = {"users": {creator: 100}}
        content = _CONTENTS.get(kind, content)
        draft = EventDraft(kind, sender, content, _FIRST_MS + number, state_key)
        cited = [state[each] for each in builder.auth_keys(draft) if each in state]
        event = builder.assemble(draft, room_id, last, cited)
        state[kind, state_key] = event
        last = (event,)
        yield event
