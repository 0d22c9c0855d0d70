"""Building events: prev events, auth events, depth, hashes and signature, in every room version.

Sources: https://spec.matrix.org/v1.16/server-server-api/#pdus, #auth-events-selection and #signing-events; the section
"Event format" of each room version.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from signedjson.types import SigningKey
from unpaddedbase64 import encode_base64

from synrepl.core.errors import InputError
from synrepl.rooms.auth.selection import auth_event_keys
from synrepl.rooms.event import MAX_PREV_EVENTS, Event, event_of
from synrepl.rooms.event_types import CREATE
from synrepl.rooms.hashes import canonical_json, reference_hash
from synrepl.rooms.lookups import Lookup, run
from synrepl.rooms.ordering import MAX_DEPTH
from synrepl.rooms.resolution_lookups import ResolutionCache, lookup_resolved_state, states_after
from synrepl.rooms.signatures import sign_event
from synrepl.rooms.state import StateKey
from synrepl.rooms.versions import EventIds, RoomVersion
from synrepl.rooms.view import (
    HEADS,
    EntriesRequest,
    EventsRequest,
    KnownEvents,
    RoomHeads,
    RoomView,
    S,
    StateAt,
    StatesRequest,
)

#: The largest integer of strict JSON.
_MAX_STRICT = (1 << 53) - 1

#: Bytes of the hash in an event ID of versions 1 and 2.
_ID_BYTES = 18


class NoRoomToBuildIn(InputError):
    """{type} cannot be built: the room has no event yet; build its m.room.create first"""


class RoomIdNeeded(InputError):
    """m.room.create of room version {version} takes a room ID that the caller chooses; give one"""


class EventDraft(NamedTuple):
    """The fields of an event that the caller chooses.

    :ivar origin_server_ts: milliseconds since 1970
    :ivar state_key: None when it is no state event
    :ivar redacts: target event ID of an ``m.room.redaction``
    """

    type: str
    sender: str
    content: Mapping[str, Any]
    origin_server_ts: int
    state_key: str | None = None
    redacts: str | None = None


class EventBuilder:
    """Builds the events of one server.

    It does not check whether an event is allowed; :func:`~synrepl.rooms.judging.judge` does.

    :param server: the server name
    :param key: the signing key of the server
    """

    def __init__(self, version: RoomVersion, server: str, key: SigningKey) -> None:
        self.version = version
        self._server = server
        self._key = key

    def create(self, draft: EventDraft, room_id: str | None = None) -> Event:
        """Build the ``m.room.create`` of a room.

        :param room_id: for versions before 12; in later ones it is derived from the event
        :raises RoomIdNeeded: this version needs one
        """
        if room_id is None and not self.version.room_id_is_create_hash:
            raise RoomIdNeeded(version=self.version.name)
        return self.assemble(draft, room_id)

    def build(
        self, draft: EventDraft, view: RoomView[S], cache: ResolutionCache[S] | None = None
    ) -> Event:
        """Build the next event of a room; :meth:`lookup_built`, run on a view."""
        return run(self.lookup_built(draft, cache), view)

    def lookup_built(
        self, draft: EventDraft, cache: ResolutionCache[S] | None = None
    ) -> Lookup[Event]:
        """Build the next event of a room, on top of its forward extremities.

        With more than 20 forward extremities, the newest 20 become prev events.

        :raises NoRoomToBuildIn: the room has no event yet
        :raises BadEvent: the event would be too large or malformed
        :raises NoCanonicalJson: its content cannot be written as canonical JSON
        """
        heads: RoomHeads[S]
        (heads,) = yield (HEADS,)
        if heads.room_id is None:
            raise NoRoomToBuildIn(type=draft.type)
        ends = heads.forward_extremities
        at: Mapping[str, StateAt[S]]
        known: KnownEvents
        at, known = yield (StatesRequest(ends), EventsRequest(ends))
        newest = sorted(ends, key=lambda each: (-at[each].topological, each))[:MAX_PREV_EVENTS]
        state = heads.empty_state
        if newest:
            states = states_after(at, newest, heads.room_id)
            state = yield from lookup_resolved_state(self.version, states, cache)
        keys = self.auth_keys(draft)
        ((entries,),) = yield (EntriesRequest((state,), keys),)
        ids = [each for each in entries if each is not None]
        (cited,) = yield (EventsRequest(ids),)
        return self.assemble(
            draft,
            heads.room_id,
            [known.events[each] for each in newest],
            [cited.events[each] for each in ids],
        )

    def auth_keys(self, draft: EventDraft) -> Sequence[StateKey]:
        """The state keys that authorise an event."""
        unplaced = Event(
            raw=b"",
            version=self.version,
            fields={},
            event_id="",
            room_id="",
            type=draft.type,
            sender=draft.sender,
            state_key=draft.state_key,
            content=dict(draft.content),
            depth=0,
            origin_server_ts=draft.origin_server_ts,
            prev_event_ids=(),
            auth_event_ids=(),
        )
        return auth_event_keys(unplaced)

    def assemble(
        self,
        draft: EventDraft,
        room_id: str | None,
        prev_events: Collection[Event] = (),
        auth_events: Collection[Event] = (),
    ) -> Event:
        """Build an event from given prev events and auth events.

        :param room_id: left out of an ``m.room.create`` whose hash is the room ID
        :raises BadEvent: see :meth:`lookup_built`
        :raises NoCanonicalJson: see :meth:`lookup_built`
        """
        version = self.version
        deepest = MAX_DEPTH if not version.strict_json else _MAX_STRICT
        content = dict(draft.content)
        fields: dict[str, Any] = {
            "type": draft.type,
            "sender": draft.sender,
            "content": content,
            "origin_server_ts": draft.origin_server_ts,
            "depth": min(max([each.depth for each in prev_events], default=0) + 1, deepest),
            "prev_events": [self._reference(each) for each in prev_events],
            "auth_events": [self._reference(each) for each in auth_events],
        }
        if draft.state_key is not None:
            fields["state_key"] = draft.state_key
        if draft.redacts is not None:
            where = content if version.redacts_in_content else fields
            where["redacts"] = draft.redacts
        is_create = draft.type == CREATE and draft.state_key == ""
        if not (is_create and version.room_id_is_create_hash):
            fields["room_id"] = room_id
        if version.event_ids is EventIds.GIVEN:
            digest = sha256(canonical_json(fields)).digest()[:_ID_BYTES]
            fields["event_id"] = f"${urlsafe_b64encode(digest).decode()}:{self._server}"
        return event_of(sign_event(fields, version, self._server, self._key), version)

    def _reference(self, event: Event) -> object:
        """A reference to an event: its ID, in versions 1 and 2 with its hash."""
        if self.version.event_ids is not EventIds.GIVEN:
            return event.event_id
        digest = encode_base64(reference_hash(event.fields, self.version))
        return [event.event_id, {"sha256": digest}]
