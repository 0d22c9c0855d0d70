"""Takes membership events that users of other servers send by this one: they join, knock, leave.

The event is judged and persisted in the process of its room, or refused and not stored; and this server sends it to the
others in the room. Source: https://spec.matrix.org/v1.16/server-server-api/#joining-rooms
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from signedjson.types import SigningKey

from synrepl.core.errors import InputError, Refused, SynreplError
from synrepl.rooms import (
    BadIdentifier,
    Event,
    ReceiptVerdict,
    RoomVersion,
    add_signature,
    event_of,
    parse_event,
    room_version,
    server_of,
    stripped_event,
)
from synrepl.services.federation.resident.room_access import RoomAccess
from synrepl.services.federation.resident.templates import RemoteMembership, check_own_user
from synrepl.services.federation.verifying import EventVerifier
from synrepl.services.forwarding import ForwardsToWriter, WriterActions
from synrepl.services.rooms.persister import RoomPersister
from synrepl.services.rooms.room_intake import NoRoomWriter
from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.remote_joins import AUTHORISED_BY, authorisation_of_join
from synrepl.storage.rooms.persisting.send_run import EventNotAllowed
from synrepl.storage.rooms.reading.client_rooms import current_events
from synrepl.storage.rooms.tables.events import EventFlags, events_by_id
from synrepl.storage.rooms.tables.incoming import EventOutcome, IncomingEvent, PersistedEvent
from synrepl.storage.rooms.tables.partial_rooms import servers_in_room
from synrepl.storage.rooms.tables.pending_rows import PendingRows

#: The action by which one process has another one persist such an event.
ARRIVAL_ACTION = "persist membership of another server's user"

#: State that the answer to a knock, or an invite, shows of a room.
#: Source: https://spec.matrix.org/v1.16/client-server-api/#stripped-state
STRIPPED_TYPES = (
    "m.room.create",
    "m.room.name",
    "m.room.avatar",
    "m.room.topic",
    "m.room.join_rules",
    "m.room.canonical_alias",
    "m.room.encryption",
)

_REFUSED = int(EventFlags.REJECTED | EventFlags.SOFT_FAILED)


class BadMembershipEvent(InputError):
    """this is no event by which a user of {server} {does} room {room_id}: {reason}"""


class MembershipNotSigned(Refused):
    """the event is not signed as it must be: {reason}"""


class ParentsUnknown(Refused):
    """the event follows events that are not here ({missing}); ask for a new template, and sign that"""


#: The errors that the process which asked another one to persist an event gets as they are.
ARRIVAL_ERRORS: tuple[type[SynreplError], ...] = (ParentsUnknown,)


class Arrival(NamedTuple):
    """An event that was taken.

    :ivar event: as it is stored, perhaps with a signature of this server
    :ivar servers: in the room before it
    """

    event: Event
    servers: Sequence[str]


class MembershipArrivals:
    """Takes membership events of users of other servers.

    :param persister: None in a process that persists no room
    :param instance: this process
    :param key: the signing key of this server
    :ivar outcomes: number of events by membership, and of those refused by the name of the error
    """

    def __init__(
        self,
        database: Database,
        access: RoomAccess,
        verifier: EventVerifier,
        persister: RoomPersister | None,
        forwarder: ForwardsToWriter,
        instance: str,
        server_name: str,
        key: SigningKey,
    ) -> None:
        self._database = database
        self._access = access
        self._verifier = verifier
        self._persister = persister
        self._forwarder = forwarder
        self._instance = instance
        self._server_name = server_name
        self._key = key
        self.outcomes: Counter[str] = Counter()

    def add_actions(self, actions: WriterActions) -> None:
        """Let other processes persist events here."""
        actions.add(ARRIVAL_ACTION, self._perform)

    async def take(
        self, origin: str, membership: RemoteMembership, room_id: str, event_id: str, raw: bytes
    ) -> Arrival:
        """Take an event.

        :param event_id: as the request names it
        :param raw: its JSON
        :raises BadEvent: :raises BadMembershipEvent: :raises NotItsUser: :raises MembershipNotSigned:
        :raises ParentsUnknown: :raises EventNotAllowed: the rules of the room refuse it
        :raises UnableToAuthoriseJoin: :raises UnableToGrantJoin:
        :raises SynreplError: the errors of :meth:`.RoomAccess.for_newcomer` and :meth:`.RoomPersister.persist`
        """
        admitted = await self._access.for_newcomer(origin, room_id)
        version = room_version(admitted.room.version)
        event = parse_event(raw, version)
        _check_form(event, origin, membership, room_id, event_id)
        event = await self._authorised(event)
        await self._verify(event, version, origin)
        room_no = admitted.room.room_no
        servers = await self._database.run(
            "servers in a room", lambda txn: servers_in_room(txn, room_no), read_only=True
        )
        await self.persist(admitted.writer, event)
        self.outcomes[membership] += 1
        return Arrival(event, sorted(servers))

    async def stripped_state(self, room_id: str) -> list[bytes]:
        """What is shown of a room to who knocks.

        :raises UnknownRoom:
        """

        def work(txn: Transaction) -> list[bytes]:
            state = current_events(txn, room_id, STRIPPED_TYPES)
            return [stripped_event(each.raw) for key, each in state.items() if key[1] == ""]

        return await self._database.run("stripped state", work, read_only=True)

    async def _authorised(self, event: Event) -> Event:
        """The event with the signature of this server, if one of its users lets the other one in."""
        named = event.content.get(AUTHORISED_BY)
        if event.membership != "join" or not isinstance(named, str) or not self._is_own(named):
            return event

        def work(txn: Transaction) -> str | None:
            return authorisation_of_join(txn, event.room_id, event.sender, self._server_name)

        # The rules check that the user whom the event names may invite; whether its sender is in one of the rooms, they
        # cannot.
        await self._database.run("authorise a join", work, read_only=True)
        fields = add_signature(event.fields, event.version, self._server_name, self._key)
        return event_of(fields, event.version)

    def _is_own(self, user_id: str) -> bool:
        try:
            return server_of(user_id) == self._server_name
        except BadIdentifier:
            return False

    async def _verify(self, event: Event, version: RoomVersion, origin: str) -> None:
        (result,) = await self._verifier.verify([event.raw], version, origin=origin)
        if result.verdict is not ReceiptVerdict.ACCEPT:
            reason = "its hash is wrong" if result.refusal is None else result.refusal.sentence
            raise MembershipNotSigned(reason=reason)

    async def persist(self, writer: str, event: Event) -> None:
        """Persist a membership event that is complete and verified, or refuse it, and store nothing.

        :param writer: the process that persists the room
        :raises EventNotAllowed: :raises ParentsUnknown:
        :raises SynreplError: the errors of :meth:`.RoomPersister.persist`
        """
        if writer == self._instance:
            await self._persist_here(event)
            return
        argument = {
            "room_id": event.room_id,
            "version": event.version.name,
            "event": event.raw.decode(),
        }
        await self._forwarder.forward(writer, ARRIVAL_ACTION, argument)

    # -- in the process that persists the room ----------------------------------------------

    async def _perform(self, argument: dict[str, Any]) -> None:
        raw, version = argument["event"].encode(), room_version(argument["version"])
        await self._persist_here(parse_event(raw, version))

    async def _persist_here(self, event: Event) -> None:
        if self._persister is None:
            raise NoRoomWriter(writers="those of stream_writers")
        incoming = [IncomingEvent(event, outgoing=True)]
        done = await self._persister.persist(event.room_id, event.version.name, incoming, _accepted)
        if done.events[0].outcome is EventOutcome.KNOWN:
            await self._check_known(event)

    async def _check_known(self, event: Event) -> None:
        """Check that an event that was there before is a part of the room.

        :raises EventNotAllowed:
        """

        def work(txn: Transaction) -> int:
            return events_by_id(txn, [event.event_id])[event.event_id].flags

        flags = await self._database.run("a known event", work, read_only=True)
        if flags & _REFUSED:
            raise EventNotAllowed(reason="the event was refused before")


def _accepted(rows: PendingRows, room_no: int, done: Sequence[PersistedEvent]) -> None:
    """Check before anything is written that an event is accepted; others are not stored.

    :raises EventNotAllowed: :raises ParentsUnknown:
    """
    for each in done:
        if each.error is not None:
            raise each.error
        if each.outcome is EventOutcome.WAITING:
            raise ParentsUnknown(missing=", ".join(each.missing[:3]))
        if each.refusal is not None:
            raise EventNotAllowed(reason=each.refusal.sentence)


_DOES = {"join": "joins", "knock": "knocks on", "leave": "leaves"}


def _check_form(
    event: Event, origin: str, membership: RemoteMembership, room_id: str, event_id: str
) -> None:
    check_own_user(event.sender, origin)
    reason = None
    if event.type != "m.room.member" or event.state_key != event.sender:
        reason = "it is no membership of its sender"
    elif event.membership != membership:
        reason = f"its membership is {str(event.membership)[:50]!r}"
    elif event.room_id != room_id:
        reason = "it is of another room"
    elif event.event_id != event_id:
        reason = f"its ID is {event.event_id}"
    if reason is not None:
        raise BadMembershipEvent(
            server=origin, does=_DOES[membership], room_id=room_id[:255], reason=reason
        )
