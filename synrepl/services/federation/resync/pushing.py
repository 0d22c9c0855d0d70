"""Tells servers of the join of this server, which they have not heard of."""

from __future__ import annotations

from uuid import uuid4

from synrepl.core.clock import Clock
from synrepl.services.federation.resync.interfaces import AsksForStates
from synrepl.storage.database import Database, Transaction
from synrepl.storage.rooms.tables.events import events_by_id, raw_json
from synrepl.storage.rooms.tables.numbers import require_room
from synrepl.storage.rooms.tables.partial_rooms import partial_room


class JoinPusher:
    """Sends the join of a partial room to one server, as the transaction in which it may have been lost would."""

    def __init__(self, clock: Clock, database: Database, client: AsksForStates) -> None:
        self._clock = clock
        self._database = database
        self._client = client

    async def push(self, destination: str, room_id: str) -> None:
        """Send the join.

        :raises SynreplError: it could not be sent
        """
        joins = await self._database.run(
            "join of a partial room", lambda txn: _join_of(txn, room_id), read_only=True
        )
        if joins:
            now_ms = int(self._clock.seconds() * 1000)
            txn_id = f"join-{uuid4().hex}"
            await self._client.send_transaction(destination, txn_id, now_ms, joins, ())


def _join_of(txn: Transaction, room_id: str) -> list[bytes]:
    row = partial_room(txn, require_room(txn, room_id).room_no)
    if row is None:
        return []
    return list(raw_json(txn, events_by_id(txn, [row.join_event_id]).values()).values())
