"""Transaction IDs of sent events: a repeated request gets the event of the first one.

Source: https://spec.matrix.org/v1.16/client-server-api/#transaction-identifiers. The record of a transaction ID is
written in the transaction of its event, so there is never one without the other.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from synrepl.storage.database import PlannedOnce, Script, Transaction
from synrepl.storage.rooms.tables.pending_rows import RoomTable, RowCells

SENT_TABLE = RoomTable("synrepl._sent_events", "request, event_id, user_id, device_id, txn_id")

#: The constraint that a repeated request breaks.
SENT_CONSTRAINT = "_sent_events_key"


class SentRequest(NamedTuple):
    """A request that is idempotent by its transaction ID.

    :ivar endpoint: which request it is, with everything of its path but the transaction ID
    """

    user_id: str
    device_id: str
    endpoint: str
    txn_id: str

    @property
    def digest(self) -> bytes:
        """What identifies it."""
        return sha256("\0".join(self).encode("utf-8", "surrogatepass")).digest()

    def row(self, event_id: str) -> RowCells:
        """Its row of :data:`SENT_TABLE`."""
        return self.digest, event_id, self.user_id, self.device_id, self.txn_id


class SentEvent(NamedTuple):
    """An event that was sent.

    :ivar stream_id: its stream ordering; None if it is not in the store any more
    :ivar writer: of its fact; None if that is not in the table of facts any more
    """

    event_id: str
    stream_id: int | None
    writer: str | None


_FIND = Script(
    [
        PlannedOnce(
            "SELECT s.event_id, e.stream_id, f.writer FROM synrepl._sent_events s"
            " LEFT JOIN synrepl._room_events e USING (event_id)"
            " LEFT JOIN synrepl.events f ON f.stream_id = e.stream_id AND f.row_no = 0"
            " WHERE s.request = %s"
        )
    ]
)


def find_sent(txn: Transaction, request: SentRequest) -> SentEvent | None:
    """The event of a request that was made before; None if there is none."""
    found = txn.execute(_FIND, (request.digest,)).fetchone_or_none()
    return None if found is None else SentEvent(*found)


def forget_sent(txn: Transaction, older_than_s: float, at_most: int) -> int:
    """Delete old records, up to ``at_most``; return their number."""
    txn.execute(
        "DELETE FROM synrepl._sent_events WHERE ctid = ANY (ARRAY("
        "SELECT ctid FROM synrepl._sent_events"
        " WHERE sent_at < now() - make_interval(secs => %s) LIMIT %s))",
        (older_than_s, at_most),
    )
    return txn.rowcount
