"""Which rooms another server may ask about."""

from __future__ import annotations

from synrepl.core.errors import InputError, Refused
from synrepl.services.federation.inbound.admission import AdmittedRoom, InboundAdmission
from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.inbound_rooms import is_server_in_room
from synrepl.storage.rooms.tables.numbers import UnknownRoom
from synrepl.storage.rooms.tables.partial_rooms import partial_room


class ServerNotInRoom(Refused):
    """{server} is not in room {room_id}"""


class StateStillPartial(Refused):
    """the state of room {room_id} is not complete here yet; ask another server"""


class NotFullyJoined(InputError):
    """this server has not joined room {room_id} fully yet; ask another server"""


class RoomAccess:
    """Checks requests of other servers about rooms."""

    def __init__(self, database: Database, admission: InboundAdmission) -> None:
        self._database = database
        self._admission = admission

    async def for_member(
        self, origin: str, room_id: str, *, needs_state: bool = False
    ) -> AdmittedRoom:
        """A room that a server is in; of a partial room, the servers are those that were in it before the join.

        :param needs_state: the answer is about the state of the room, which must be complete
        :raises UnknownRoom: :raises NotInThisRoom: :raises ServerNotAdmitted: :raises ServerNotInRoom:
        :raises StateStillPartial:
        """

        def work(txn: Transaction) -> AdmittedRoom:
            found = self._admitted(txn, origin, room_id)
            if not is_server_in_room(txn, found.room.room_no, origin):
                raise ServerNotInRoom(server=origin, room_id=room_id)
            if needs_state and partial_room(txn, found.room.room_no) is not None:
                raise StateStillPartial(room_id=room_id)
            return found

        return await self._database.run("look at a room", work, read_only=True)

    async def for_newcomer(self, origin: str, room_id: str) -> AdmittedRoom:
        """A room whose memberships a server may change, in which it need not be.

        :raises UnknownRoom: :raises NotInThisRoom: :raises ServerNotAdmitted: :raises NotFullyJoined:
        """

        def work(txn: Transaction) -> AdmittedRoom:
            found = self._admitted(txn, origin, room_id)
            if partial_room(txn, found.room.room_no) is not None:
                raise NotFullyJoined(room_id=room_id)
            return found

        return await self._database.run("look at a room", work, read_only=True)

    def _admitted(self, txn: Transaction, origin: str, room_id: str) -> AdmittedRoom:
        found = self._admission.look(txn, origin, [room_id]).get(room_id)
        if found is None:
            raise UnknownRoom(room_id=room_id.replace("\0", "\ufffd")[:255])
        if found.refusal is not None:
            raise found.refusal
        return found
