"""The first events of a room that a user creates.

Source: https://spec.matrix.org/v1.16/client-server-api/#creation
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from synrepl.core.errors import InputError
from synrepl.rooms import (
    Event,
    EventBuilder,
    EventDraft,
    Room,
    StateKey,
    check_room_id,
    check_user_id,
)
from synrepl.storage.rooms.persisting.send_run import EventNotAllowed
from synrepl.storage.rooms.tables.incoming import check_storable

#: The version of a room whose creator does not choose one.
DEFAULT_ROOM_VERSION = "11"

#: Maximum numbers of users invited, and of other events, when a room is created.
MAX_INVITED, MAX_INITIAL = 100, 500

#: State types that a room begins with, and that the caller cannot give.
_FIRST = ("m.room.create", "m.room.member")

_POWER_LEVELS: StateKey = ("m.room.power_levels", "")

_ID_LENGTH = 18

Preset = Literal["private_chat", "trusted_private_chat", "public_chat"]


class TooMuchInNewRoom(InputError):
    """a room begins with at most {limit} {what}"""


class NotForNewRoom(InputError):
    """{what} cannot be given when a room is created: {reason}"""


class InitialState(msgspec.Struct):
    """An event of the first state."""

    type: str
    content: dict[str, Any]
    state_key: str = ""


class NewRoom(msgspec.Struct):
    """What a user chooses of a new room: the body of ``POST /createRoom``."""

    visibility: Literal["public", "private"] = "private"
    room_alias_name: str | None = None
    name: str | None = None
    topic: str | None = None
    invite: list[str] = []  # msgspec copies it
    invite_3pid: list[dict[str, Any]] = []
    room_version: str | None = None
    creation_content: dict[str, Any] = {}
    initial_state: list[InitialState] = []
    preset: Preset | None = None
    is_direct: bool = False
    power_level_content_override: dict[str, Any] = {}

    @property
    def invite_content(self) -> dict[str, Any]:
        """Members of the events that invite users, besides the membership."""
        return {"is_direct": True} if self.is_direct else {}

    def check(self) -> None:
        """Check the limits.

        :raises TooMuchInNewRoom: :raises NotForNewRoom: :raises BadIdentifier: an invited user has no user ID
        """
        if len(self.invite) > MAX_INVITED:
            raise TooMuchInNewRoom(what="invited users", limit=MAX_INVITED)
        if len(self.initial_state) > MAX_INITIAL:
            raise TooMuchInNewRoom(what="events in initial_state", limit=MAX_INITIAL)
        if self.invite_3pid:
            raise NotForNewRoom(what="invite_3pid", reason="this server has no identity server")
        for each in self.initial_state:
            if each.type in _FIRST:
                reason = "it has a place of its own in the request"
                raise NotForNewRoom(what=f"{each.type} in initial_state", reason=reason)
        for user_id in self.invite:
            check_user_id(user_id)


class FirstEvents:
    """Builds and judges the first events of a room, in memory.

    :param alias: that becomes its canonical alias
    :param invited_later: users who are not invited by these events
    :ivar events: in their order, all of them allowed
    """

    def __init__(
        self,
        builder: EventBuilder,
        creator: str,
        server_name: str,
        now_ms: int,
        new: NewRoom,
        alias: str | None = None,
        invited_later: Collection[str] = (),
    ) -> None:
        self._left_out = {creator, *invited_later}
        self.events: list[Event] = []
        self._builder = builder
        self._creator = creator
        self._server_name = server_name
        self._now_ms = now_ms
        self._new = new
        self._alias = alias
        self._room = Room(builder.version)

    @property
    def room_id(self) -> str:
        """The ID of the room; there is one once it was built."""
        return self.events[0].room_id

    def build(self) -> Sequence[Event]:
        """Build the events.

        :raises EventNotAllowed: the rules refuse one, such as power levels without the creator
        :raises BadEvent: :raises NoCanonicalJson: :raises NotStorable: the content of one is not acceptable
        """
        version = self._builder.version
        room_id = None
        if not version.room_id_is_create_hash:
            letters = "".join(secrets.choice(string.ascii_letters) for _ in range(_ID_LENGTH))
            room_id = f"!{letters}:{self._server_name}"
            check_room_id(room_id, version)
        self._take(
            self._builder.create(self._draft("m.room.create", self._creation(), ""), room_id)
        )
        self._add("m.room.member", {"membership": "join"}, self._creator)
        self._add("m.room.power_levels", self._power_levels(), "")
        for (kind, state_key), content in self._state().items():
            self._add(kind, content, state_key)
        for user_id in dict.fromkeys(self._new.invite):
            if user_id not in self._left_out:
                content = {"membership": "invite", **self._new.invite_content}
                self._add("m.room.member", content, user_id)
        return self.events

    @property
    def _preset(self) -> Preset:
        default: Preset = "public_chat" if self._new.visibility == "public" else "private_chat"
        return self._new.preset or default

    def _creation(self) -> dict[str, Any]:
        version = self._builder.version
        content = {**self._new.creation_content, "room_version": version.name}
        content.pop("creator", None)
        if not version.creator_is_sender:
            content["creator"] = self._creator
        if version.room_id_is_create_hash and self._preset == "trusted_private_chat":
            given = content.get("additional_creators", [])
            if isinstance(given, list):
                content["additional_creators"] = [*given, *self._new.invite]
        return content

    def _power_levels(self) -> dict[str, Any]:
        by_hash = self._builder.version.room_id_is_create_hash
        users: dict[str, int] = {} if by_hash else {self._creator: 100}
        if self._preset == "trusted_private_chat" and not by_hash:
            users |= dict.fromkeys(self._new.invite, 100)
        events = {
            "m.room.name": 50,
            "m.room.power_levels": 100,
            "m.room.history_visibility": 100,
            "m.room.canonical_alias": 50,
            "m.room.avatar": 50,
            "m.room.tombstone": 150 if by_hash else 100,
            "m.room.server_acl": 100,
            "m.room.encryption": 100,
        }
        levels: dict[str, Any] = {
            "users": users,
            "users_default": 0,
            "events": events,
            "events_default": 0,
            "state_default": 50,
            "ban": 50,
            "kick": 50,
            "redact": 50,
            "invite": 50 if self._preset == "public_chat" else 0,
        }
        for each in self._new.initial_state:
            if (each.type, each.state_key) == _POWER_LEVELS:
                levels = each.content
        return {**levels, **self._new.power_level_content_override}

    def _state(self) -> Mapping[StateKey, Mapping[str, Any]]:
        """The rest of the first state: what the preset has, then what was given, then name and topic."""
        state: dict[StateKey, Mapping[str, Any]] = {}
        if self._alias is not None:
            state["m.room.canonical_alias", ""] = {"alias": self._alias}
        state.update(self._preset_state())
        for each in self._new.initial_state:
            if (each.type, each.state_key) != _POWER_LEVELS:
                state[each.type, each.state_key] = each.content
        if self._new.name is not None:
            state["m.room.name", ""] = {"name": self._new.name}
        if self._new.topic is not None:
            state["m.room.topic", ""] = {"topic": self._new.topic}
        return state

    def _preset_state(self) -> Iterator[tuple[StateKey, Mapping[str, Any]]]:
        is_public = self._preset == "public_chat"
        yield ("m.room.join_rules", ""), {"join_rule": "public" if is_public else "invite"}
        yield ("m.room.history_visibility", ""), {"history_visibility": "shared"}
        access = "forbidden" if is_public else "can_join"
        yield ("m.room.guest_access", ""), {"guest_access": access}

    def _add(self, kind: str, content: Mapping[str, Any], state_key: str) -> None:
        self._take(self._builder.build(self._draft(kind, content, state_key), self._room))

    def _draft(self, kind: str, content: Mapping[str, Any], state_key: str) -> EventDraft:
        return EventDraft(kind, self._creator, content, self._now_ms, state_key)

    def _take(self, event: Event) -> None:
        for judged in self._room.receive(event):
            reason = judged.refusal or judged.soft_failure
            if reason is not None:
                raise EventNotAllowed(reason=f"{event.type}: {reason.sentence}")
        check_storable(event)
        self.events.append(event)
