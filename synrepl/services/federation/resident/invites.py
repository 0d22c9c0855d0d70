"""Invites of users of this server, by other servers.

Source: https://spec.matrix.org/v1.16/server-server-api/#inviting-to-a-room
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from signedjson.types import SigningKey

from synrepl.core.clock import Clock
from synrepl.core.errors import InputError
from synrepl.rooms import (
    Event,
    ReceiptVerdict,
    UnknownRoomVersion,
    add_signature,
    check_room_id,
    event_of,
    parse_event,
    room_version,
    stripped_event,
)
from synrepl.services.federation.inbound.admission import InboundAdmission, NotInThisRoom
from synrepl.services.federation.inbound.handover import EventHandover
from synrepl.services.federation.resident.arrivals import MembershipNotSigned
from synrepl.services.federation.resident.templates import check_own_user
from synrepl.services.federation.verifying import EventVerifier
from synrepl.services.forwarding import ForwardsToWriter, WriterActions
from synrepl.services.rooms.room_intake import NoRoomWriter
from synrepl.services.rooms.room_writers import RoomWriters
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.remote_memberships import (
    REMOTE_MEMBERSHIP_STREAMS,
    RemoteMembership,
    write_remote_membership,
)
from synrepl.storage.outbox import Outbox
from synrepl.storage.rooms.tables.incoming import check_storable

#: The action by which one process has another one store such a membership.
STORE_ACTION = "store membership in a remote room"

#: State events that are kept of a room that a user is invited to, and their bytes in all.
MAX_SHOWN, MAX_SHOWN_BYTES = 30, 128 * 2**10


class BadInvite(InputError):
    """this is no invite of a user of {server}: {reason}"""


class InviteVersionUnknown(InputError):
    """this server does not know room version {room_version}"""


class ReceivedInvite(NamedTuple):
    """An invite as a server sent it.

    :ivar raw: the JSON of the event
    :ivar version: of the room, as that server says
    :ivar shown: what it shows of the room, unchecked JSON
    """

    room_id: str
    event_id: str
    raw: bytes
    version: str
    shown: object


class RemoteMemberships:
    """Stores memberships of users of this server in rooms that this server is not in.

    :param writer: None in a process that writes no streams
    :param instance: this process
    """

    def __init__(
        self,
        clock: Clock,
        writers: RoomWriters,
        writer: StreamWriter | None,
        forwarder: ForwardsToWriter,
        instance: str,
    ) -> None:
        self._clock = clock
        self._writers = writers
        self._writer = writer
        self._forwarder = forwarder
        self._instance = instance

    def add_actions(self, actions: WriterActions) -> None:
        """Let other processes store memberships here."""
        actions.add(STORE_ACTION, self._perform)

    async def store(self, membership: RemoteMembership) -> None:
        """Store a membership, in the process that events of the room are assigned to.

        :raises OtherRoomVersion: the room is known with another version
        :raises SynreplError: the errors of :meth:`.StreamWriter.transact` and of forwarding
        """
        event = membership.event
        assignment = (await self._writers.place([event.room_id])).assignment
        writer = assignment.writer_of(event.room_id)
        if writer == self._instance:
            await self._store(membership)
            return
        argument = {
            "version": event.version.name,
            "event": event.raw.decode(),
            "shown": [each.decode() for each in membership.stripped_state],
        }
        await self._forwarder.forward(writer, STORE_ACTION, argument)

    async def _perform(self, argument: dict[str, Any]) -> None:
        event = parse_event(argument["event"].encode(), room_version(argument["version"]))
        shown = [each.encode() for each in argument["shown"]]
        await self._store(RemoteMembership(event, shown))

    async def _store(self, membership: RemoteMembership) -> None:
        if self._writer is None:
            raise NoRoomWriter(writers="those of stream_writers")
        now_ms = int(self._clock.seconds() * 1000)

        def work(txn: Transaction, outbox: Outbox) -> None:
            write_remote_membership(txn, outbox, membership, now_ms)

        streams = REMOTE_MEMBERSHIP_STREAMS
        await self._writer.transact("store membership in a remote room", streams, work)


class InviteReceiver:
    """Takes invites of users of this server.

    :param key: the signing key of this server
    :ivar outcomes: number of invites, by whether this server is in the room
    """

    def __init__(
        self,
        database: Database,
        admission: InboundAdmission,
        verifier: EventVerifier,
        handover: EventHandover,
        memberships: RemoteMemberships,
        server_name: str,
        key: SigningKey,
    ) -> None:
        self._database = database
        self._admission = admission
        self._verifier = verifier
        self._handover = handover
        self._memberships = memberships
        self._server_name = server_name
        self._key = key
        self.outcomes: Counter[str] = Counter()

    async def take(self, origin: str, invite: ReceivedInvite) -> Event:
        """Take an invite.

        In a room that this server is in, it is an event like any other, which other servers send as well. Of other rooms,
        it is kept with what the inviting server shows of the room.

        :returns: the event, signed by this server, too
        :raises InviteVersionUnknown: :raises BadEvent: :raises BadInvite: :raises NotItsUser:
        :raises MembershipNotSigned: :raises ServerNotAdmitted: :raises NotStorable:
        :raises SynreplError: the errors of :meth:`RemoteMemberships.store`
        """
        try:
            version = room_version(invite.version)
        except UnknownRoomVersion:
            raise InviteVersionUnknown(room_version=invite.version[:100]) from None
        event = parse_event(invite.raw, version)
        self._check_form(event, origin, invite)
        (result,) = await self._verifier.verify([event.raw], version, origin=origin)
        if result.verdict is not ReceiptVerdict.ACCEPT:
            reason = "its hash is wrong" if result.refusal is None else result.refusal.sentence
            raise MembershipNotSigned(reason=reason)
        fields = add_signature(event.fields, version, self._server_name, self._key)
        signed = event_of(fields, version)
        rooms = await self._database.run(
            "look at a room",
            lambda txn: self._admission.look(txn, origin, [event.room_id]),
            read_only=True,
        )
        room = rooms.get(event.room_id)
        if room is not None and room.refusal is None:
            await self._handover.give(origin, {event.room_id: [signed]}, rooms)
            self.outcomes["known room"] += 1
            return signed
        if room is not None and not isinstance(room.refusal, NotInThisRoom):
            assert room.refusal is not None
            raise room.refusal
        shown = shown_state(invite.shown)
        await self._memberships.store(RemoteMembership(signed, shown))
        self.outcomes["unknown room"] += 1
        return signed

    def _check_form(self, event: Event, origin: str, invite: ReceivedInvite) -> None:
        check_own_user(event.sender, origin)
        check_storable(event)
        check_room_id(event.room_id, event.version)
        reason = None
        if event.type != "m.room.member" or event.membership != "invite":
            reason = "it is no invite"
        elif event.room_id != invite.room_id:
            reason = "it is of another room"
        elif event.event_id != invite.event_id:
            reason = f"its ID is {event.event_id}"
        if reason is not None:
            raise BadInvite(server=self._server_name, reason=reason)
        check_own_user(event.state_key or "", self._server_name)


class _Shown(msgspec.Struct):
    """What a stripped state event has."""

    type: str
    state_key: str
    sender: str
    content: dict[str, Any]


def shown_state(given: object) -> Sequence[bytes]:
    """The stripped state events in what a server shows of a room; others are left out."""
    shown: list[bytes] = []
    size = 0
    for each in given[:MAX_SHOWN] if isinstance(given, list) else ():
        try:
            msgspec.convert(each, _Shown)
            event = stripped_event(msgspec.json.encode(each))
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
            continue
        size += len(event)
        if size > MAX_SHOWN_BYTES:
            break
        shown.append(event)
    return shown
