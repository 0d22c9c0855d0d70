"""Sends events of this server's users, in the process that persists the room, once for each transaction ID."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from signedjson.types import SigningKey

from synrepl.core import jsons
from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.rooms import Event, EventBuilder, EventDraft, canonical_json, parse_event, room_version
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.forwarding import ForwardsToWriter, WriterActions
from synrepl.services.rooms.assignment import OtherRoomWriter
from synrepl.services.rooms.persister import RoomPersister
from synrepl.services.rooms.room_intake import NoRoomWriter
from synrepl.services.rooms.sending.placements import PlacementCache, RoomPlacement
from synrepl.storage.database import Database, Transaction, UniqueViolation
from synrepl.storage.rooms.persisting.send_run import EventNotAllowed, OutgoingEvent
from synrepl.storage.rooms.tables.incoming import EventOutcome, IncomingEvent
from synrepl.storage.rooms.tables.numbers import OtherRoomVersion
from synrepl.storage.rooms.tables.sent_events import (
    SENT_CONSTRAINT,
    SentEvent,
    SentRequest,
    find_sent,
)

#: The actions that other processes ask of the one that persists a room.
SEND_ACTION, CREATE_ACTION = "send event", "create room"


class ClientRequestId(NamedTuple):
    """The transaction ID of a client's request.

    :ivar endpoint: which request it is, with everything of its path but the transaction ID
    """

    endpoint: str
    txn_id: str


class EventSender:
    """Sends events of users of this server.

    :param persister: None in a process that persists no room
    :param instance: this process
    :param key: the signing key of the server
    :param forwarder: reaches the processes that persist other rooms
    """

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        placements: PlacementCache,
        persister: RoomPersister | None,
        instance: str,
        server_name: str,
        key: SigningKey,
        forwarder: ForwardsToWriter,
    ) -> None:
        self.server_name = server_name
        self.placements = placements
        self._scheduler = scheduler
        self._database = database
        self._persister = persister
        self._instance = instance
        self._key = key
        self._forwarder = forwarder
        self._builders: dict[str, EventBuilder] = {}

    def builder(self, version: str) -> EventBuilder:
        """Builds events of this server in rooms of a version.

        :raises UnknownRoomVersion: there is no such version
        """
        found = self._builders.get(version)
        if found is None:
            found = EventBuilder(room_version(version), self.server_name, self._key)
            self._builders[version] = found
        return found

    def now_ms(self) -> int:
        """The time of a new event, in milliseconds since 1970."""
        return int(self._scheduler.seconds() * 1000)

    async def send(
        self,
        identity: ClientIdentity,
        room_id: str,
        kind: str,
        content: Mapping[str, Any],
        *,
        state_key: str | None = None,
        redacts: str | None = None,
        request_id: ClientRequestId | None = None,
        memberships: Collection[str] | None = None,
    ) -> SentEvent:
        """Send an event; returns once it is committed and announced.

        A repeated request with the same ``request_id`` gets the event of the first one, from any process, also if the
        event would not be allowed any more.

        :param kind: its type
        :param memberships: of the user in ``state_key``, one of which is required; None for no such condition
        :raises UnknownRoom: the room is not stored
        :raises EventNotAllowed: the rules of the room refuse it
        :raises RedactedEventUnknown: what it redacts is not in the room
        :raises BadEvent: :raises NoCanonicalJson: :raises NotStorable: its content is not acceptable
        :raises WriterUnreachable: :raises ForwardingFailed: :raises RoomQueueFull:
        :raises SynreplError: the errors of :meth:`.RoomPersister.send`
        """
        user_id, device_id = identity
        draft = EventDraft(kind, user_id, content, self.now_ms(), state_key, redacts)
        request = None if request_id is None else SentRequest(user_id, device_id, *request_id)
        outgoing = OutgoingEvent(draft, request, memberships)
        placement = await self.placements.of(room_id)
        try:
            return await self._send_to(placement, room_id, outgoing)
        except (OtherRoomWriter, OtherRoomVersion):
            placement = await self.placements.of(room_id, fresh=True)
            return await self._send_to(placement, room_id, outgoing)

    async def persist_new(self, room_id: str, version: str, events: Sequence[Event]) -> SentEvent:
        """Persist the first events of a room, which were judged already, in the process that persists it.

        :returns: the last one
        :raises SynreplError: the errors of :meth:`.RoomPersister.persist`, and of forwarding
        """
        writer = (await self.placements.assignment()).writer_of(room_id)
        if writer == self._instance:
            return await self._persist_new(room_id, version, events)
        texts = [each.raw.decode() for each in events]
        argument = {"room_id": room_id, "version": version, "events": texts}
        return SentEvent(*await self._forwarder.forward(writer, CREATE_ACTION, argument))

    def add_actions(self, actions: WriterActions) -> None:
        """Add what this process does for others."""
        actions.add(SEND_ACTION, self._perform_send)
        actions.add(CREATE_ACTION, self._perform_create)

    # -- in the process that persists the room ---------------------------------------------

    async def _send_to(
        self, placement: RoomPlacement, room_id: str, outgoing: OutgoingEvent
    ) -> SentEvent:
        if placement.writer == self._instance:
            return await self._send(placement.version, room_id, outgoing)
        draft, request, memberships = outgoing
        argument = {
            "room_id": room_id,
            "draft": draft._replace(content={})._asdict(),
            # As text: an old room version may have integers that the JSON of a request cannot have.
            "content": canonical_json(draft.content).decode(),
            "request": None if request is None else request._asdict(),
            "memberships": None if memberships is None else list(memberships),
        }
        sent = await self._forwarder.forward(placement.writer, SEND_ACTION, argument)
        return SentEvent(*sent)

    async def _perform_send(self, argument: dict[str, Any]) -> list[object]:
        """Send an event for another process."""
        room_id, request = argument["room_id"], argument["request"]
        content = jsons.decode(argument["content"], "the content")
        outgoing = OutgoingEvent(
            EventDraft(**argument["draft"])._replace(content=content),
            None if request is None else SentRequest(**request),
            argument["memberships"],
        )
        placement = await self.placements.of(room_id)
        if placement.writer != self._instance:
            placement = await self.placements.of(room_id, fresh=True)
        if placement.writer != self._instance:
            raise OtherRoomWriter(
                room_id=room_id, assigned_to=placement.writer, instance=self._instance
            )
        return [*await self._send(placement.version, room_id, outgoing)]

    async def _send(self, version: str, room_id: str, outgoing: OutgoingEvent) -> SentEvent:
        persister = self._required()
        try:
            sent = await persister.send(room_id, self.builder(version), outgoing)
        except UniqueViolation as error:
            if error.constraint != SENT_CONSTRAINT:
                raise
            return await self._sent_before(outgoing, error)
        except EventNotAllowed as error:
            return await self._sent_before(outgoing, error)
        after = persister.began_at(room_id, sent.stream_id or 0)
        return SentEvent(sent.event_id, sent.stream_id, self._instance, after)

    async def _sent_before(self, outgoing: OutgoingEvent, error: SynreplError) -> SentEvent:
        """The event of a request that was made before; raises the error if there is none."""
        found = None
        if outgoing.request is not None:
            work = partial(_find, request=outgoing.request)
            found = await self._database.run("find a sent event", work, read_only=True)
        if found is None:
            raise error
        return found

    async def _perform_create(self, argument: dict[str, Any]) -> list[object]:
        """Persist the first events of a room for another process."""
        version = room_version(argument["version"])
        events = [parse_event(text.encode(), version) for text in argument["events"]]
        return [*await self._persist_new(argument["room_id"], version.name, events)]

    async def _persist_new(self, room_id: str, version: str, events: Sequence[Event]) -> SentEvent:
        incoming = [IncomingEvent(each, outgoing=True) for each in events]
        done = await self._required().persist(room_id, version, incoming)
        for each in done.events:
            if each.error is not None:
                raise each.error
            if each.outcome not in (EventOutcome.ACCEPTED, EventOutcome.KNOWN):
                sentence = "it was not accepted" if each.refusal is None else each.refusal.sentence
                raise EventNotAllowed(reason=sentence)
        return SentEvent(done.events[-1].event_id, done.events[-1].stream_id, self._instance)

    def _required(self) -> RoomPersister:
        if self._persister is None:
            raise NoRoomWriter(writers="those of stream_writers")
        return self._persister


def _find(txn: Transaction, request: SentRequest) -> SentEvent | None:
    return find_sent(txn, request)
