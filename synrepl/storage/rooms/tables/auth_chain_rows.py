"""Auth chains from the numbers in event rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from synrepl.rooms import BitSetChains, RoomVersion
from synrepl.storage.database import PlannedOnce, Script, Transaction
from synrepl.storage.rooms.tables.numbers import NumberWithoutRow, RoomRow
from synrepl.storage.rooms.tables.pending_rows import array_text


class ChainEvent(NamedTuple):
    """As much of an event as :class:`~synrepl.rooms.BitSetChains` looks at."""

    event_id: str
    type: str
    state_key: str | None
    auth_event_ids: tuple[str, ...]
    version: RoomVersion
    room_id: str

    @property
    def is_create(self) -> bool:
        """Whether it is the room's ``m.room.create``."""
        return self.type == "m.room.create" and self.state_key == ""


# PostgreSQL cannot know how few events are in a chain, and would read all events of all rooms for each step.
# What has an OFFSET is run for each event, by its number.
_CHAINS = Script(
    [
        PlannedOnce(
            "WITH RECURSIVE chain (event_no) AS (SELECT unnest(%s::bigint[]) UNION"
            " SELECT unnest(e.auth_nos) FROM chain CROSS JOIN LATERAL (SELECT e.auth_nos"
            "  FROM synrepl._room_events e WHERE e.event_no = chain.event_no OFFSET 0) AS e)"
            " SELECT e.* FROM chain CROSS JOIN LATERAL ("
            "  SELECT e.event_no, e.event_id, e.auth_nos, t.type, k.state_key"
            "  FROM synrepl._room_events e JOIN synrepl._event_types t USING (type_no)"
            "  LEFT JOIN synrepl._room_keys k ON k.room_no = %s AND k.slot = e.slot"
            "  WHERE e.event_no = chain.event_no OFFSET 0) AS e"
        )
    ]
)


def chain_events(
    txn: Transaction,
    room: RoomRow,
    version: RoomVersion,
    starts: Collection[int],
    known: BitSetChains,
) -> Iterator[Any]:
    """Some events and everything in their auth chains, auth events first, in one statement.

    :param known: chains of events that need not be among them
    :raises NumberWithoutRow: an auth event is not here
    """
    if not starts:
        return
    txn.execute(_CHAINS, (array_text(starts), room.room_no))
    rows = {int(row[0]): row for row in txn.fetchall()}
    implied = "$" + room.room_id[1:] if version.room_id_is_create_hash else None
    done: set[int] = set()
    path = [(number, False) for number in starts]
    while path:
        number, is_done = path.pop()
        row = rows.get(number)
        if row is None:
            raise NumberWithoutRow(what="auth event", number=number, room_no=room.room_no)
        _, event_id, auth_nos, kind, state_key = row
        if is_done:
            cited = [str(rows[each][1]) for each in auth_nos if each in rows]
            ids = tuple([each for each in cited if each != implied])
            yield ChainEvent(event_id, kind, state_key, ids, version, room.room_id)
        elif number not in done and event_id not in known:
            done.add(number)
            path.append((number, True))
            path.extend([(each, False) for each in auth_nos])
