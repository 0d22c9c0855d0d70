"""Which rooms other servers may take part in here: those that this server is in, as far as their server ACLs go."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from threading import Lock
from typing import NamedTuple

from synrepl.core.errors import Refused, SynreplError
from synrepl.federation.server_acl import ServerAcl
from synrepl.services.rooms.assignment import RoomAssignment
from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.inbound_rooms import InboundRoom, acl_contents, inbound_rooms
from synrepl.storage.federation.received_transactions import recorded_answer
from synrepl.storage.rooms.tables.room_writers import read_placements

#: Server ACLs that are kept in their usable form.
MAX_ACLS = 5_000


class ServerNotAdmitted(Refused):
    """the server ACL of room {room_id} does not admit {server}"""


class NotInThisRoom(Refused):
    """no user of this server is in room {room_id}"""


class AdmittedRoom(NamedTuple):
    """A room that events came for.

    :ivar writer: the process that judges them
    :ivar refusal: why none is taken
    """

    room: InboundRoom
    writer: str
    refusal: SynreplError | None


class TransactionFacts(NamedTuple):
    """What is read before a transaction is taken in.

    :ivar answer: that it got before; None if it is new
    :ivar rooms: stored rooms by ID
    """

    answer: bytes | None
    rooms: Mapping[str, AdmittedRoom]


class ServerAcls:
    """Server ACLs of rooms, by the number of the event that set them; such an event never changes.

    Work functions of several threads share it.
    """

    def __init__(self) -> None:
        self._acls: dict[int, ServerAcl] = {}
        self._lock = Lock()

    def read(self, txn: Transaction, acl_nos: Iterable[int | None]) -> dict[int, ServerAcl]:
        """Some server ACLs; those that are not known are read."""
        wanted = {each for each in acl_nos if each is not None}
        with self._lock:
            found = {each: self._acls[each] for each in wanted if each in self._acls}
        contents = acl_contents(txn, wanted - found.keys())
        new = {number: ServerAcl(content) for number, content in contents.items()}
        with self._lock:
            self._acls.update(new)
            while len(self._acls) > MAX_ACLS:
                del self._acls[next(iter(self._acls))]
        return found | new


class InboundAdmission:
    """Reads which rooms a server may take part in, for each request anew.

    :param configured: the processes of ``rooms.writers``, which count until others are set
    """

    def __init__(self, database: Database, server_name: str, configured: Collection[str]) -> None:
        self._database = database
        self._server_name = server_name
        self._configured = tuple(configured)
        self._acls = ServerAcls()

    async def facts(self, origin: str, txn_id: str, room_ids: Collection[str]) -> TransactionFacts:
        """What a transaction needs."""

        def work(txn: Transaction) -> TransactionFacts:
            answer = recorded_answer(txn, origin, txn_id)
            if answer is not None:
                return TransactionFacts(answer, {})
            return TransactionFacts(None, self.look(txn, origin, room_ids))

        return await self._database.run("look at a transaction", work, read_only=True)

    async def admitted(self, origin: str, room_ids: Collection[str]) -> Collection[str]:
        """See :class:`.RoomAdmission`."""
        rooms = await self._database.run(
            "look at rooms", lambda txn: self.look(txn, origin, room_ids), read_only=True
        )
        return {room_id for room_id, each in rooms.items() if each.refusal is None}

    def look(
        self, txn: Transaction, origin: str, room_ids: Collection[str]
    ) -> dict[str, AdmittedRoom]:
        """Stored rooms by ID, with why the server may not take part in them, in a transaction."""
        if not room_ids:
            return {}
        rooms = inbound_rooms(txn, room_ids, self._server_name)
        writers = read_placements(txn, ()).writers or self._configured
        moved = {each.room_id: each.moved_to for each in rooms.values() if each.moved_to}
        assignment = RoomAssignment(writers, moved)
        acls = self._acls.read(txn, [each.acl_no for each in rooms.values()])
        found: dict[str, AdmittedRoom] = {}
        for room_id, room in rooms.items():
            acl = None if room.acl_no is None else acls[room.acl_no]
            refusal = _refusal(room, acl, origin)
            found[room_id] = AdmittedRoom(room, assignment.writer_of(room_id), refusal)
        return found


def _refusal(room: InboundRoom, acl: ServerAcl | None, origin: str) -> SynreplError | None:
    if not room.has_users:
        return NotInThisRoom(room_id=room.room_id)
    if acl is not None and not acl.allows(origin):
        return ServerNotAdmitted(room_id=room.room_id, server=origin)
    return None
