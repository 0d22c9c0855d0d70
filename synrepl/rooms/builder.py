"""Making events: what they follow, what they cite, their depth, hashes and signature, in every room version.

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

#: Bytes of the hash that an event ID of versions 1 and 2 is made of.
_ID_BYTES = 18


class NoRoomToBuildIn(InputError):
    """{type} cannot be built: the room has no event yet; build its m.room.create first"""


class RoomIdNeeded(InputError):
    """m.room.create of room version {version} takes a room ID that the caller chooses; give one"""


class EventDraft(NamedTuple):
    """What an event is to say.

    :ivar origin_server_ts: milliseconds since 1970
    :ivar state_key: None when it is no state event
    :ivar redacts: of an ``m.room.redaction``, the ID of the event that it is about
    """

    type: str
    sender: str
    content: Mapping[str, Any]
    origin_server_ts: int
    state_key: str | None = None
    redacts: str | None = None


class EventBuilder:
    """Makes the events of one server.

    It does not say whether an event is allowed: that is for :func:`~synrepl.rooms.judging.judge`.

    :param server: the name of the server
    :param key: the one that it signs with
    """

    def __init__(self, version: RoomVersion, server: str, key: SigningKey) -> None:
        self.version = version
        self._server = server
        self._key = key

    def create(self, draft: EventDraft, room_id: str | None = None) -> Event:
        """The first event of a room.

        :param room_id: for versions before 12; from then on, it follows from the event
        :raises RoomIdNeeded: there has to be one
        """
        if room_id is None and not self.version.room_id_is_create_hash:
            raise RoomIdNeeded(version=self.version.name)
        return self.assemble(draft, room_id)

    def build(
        self, draft: EventDraft, view: RoomView[S], cache: ResolutionCache[S] | None = None
    ) -> Event:
        """The next event of a room, at once; see :meth:`lookup_built`."""
        return run(self.lookup_built(draft, cache), view)

    def lookup_built(
        self, draft: EventDraft, cache: ResolutionCache[S] | None = None
    ) -> Lookup[Event]:
        """The next event of a room: it follows the forward extremities, and cites what authorises it.

        Of more than 20 extremities it follows the newest 20.

        :raises NoRoomToBuildIn: there is no event yet
        :raises BadEvent: it would be too large, or no event
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
        """The state that authorises an event."""
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
        """An event with everything that it follows and cites given.

        :param room_id: left out of an ``m.room.create`` whose hash it is
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
        """How one event names another: by ID, in versions 1 and 2 with its hash."""
        if self.version.event_ids is not EventIds.GIVEN:
            return event.event_id
        digest = encode_base64(reference_hash(event.fields, self.version))
        return [event.event_id, {"sha256": digest}]
