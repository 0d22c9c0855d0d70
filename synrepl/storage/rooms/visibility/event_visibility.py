"""What users and servers see of given events, by the states after them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from synrepl.rooms import (
    HistoryVisibility,
    Sight,
    Viewer,
    VisibilityVerdict,
    visible_to_server,
)
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.numbers import RoomRow
from synrepl.storage.rooms.visibility.audience import NOBODY_BIT, membership_text, unpack_audience
from synrepl.storage.rooms.visibility.erased_users import is_erased_sql
from synrepl.storage.rooms.visibility.room_viewer import RoomViewer
from synrepl.storage.rooms.visibility.server_memberships import server_memberships
from synrepl.storage.rooms.visibility.viewer_sql import (
    SeenEvent,
    seen_events,
    viewer_params,
    viewer_sql,
)


class ServedEvent(NamedTuple):
    """An event, and what a server sees of it.

    :ivar redacted_by: number of the redaction that applies to it; None if there is none
    """

    event_no: int
    event_id: str
    verdict: VisibilityVerdict
    redacted_by: int | None

    @property
    def is_whole(self) -> bool:
        """Whether the server gets the event as it came, not its redacted form."""
        return self.verdict.sight is Sight.FULL and self.redacted_by is None


def seen_by_user(
    txn: Transaction, room_id: str, viewer: Viewer, event_ids: Collection[str]
) -> Mapping[str, SeenEvent]:
    """What a user sees of some events, by ID.

    Those that are not of the room, and those that nobody may see, are left out.

    :raises UnknownRoom: the room is not in the store
    """
    return seen_by_viewer(RoomViewer.find(txn, room_id, viewer), event_ids)


def seen_by_viewer(user: RoomViewer, event_ids: Collection[str]) -> Mapping[str, SeenEvent]:
    """The same for a user in a room."""
    history, viewer = user.history(), user.viewer
    params = viewer_params(history, viewer) | {"events": list(set(event_ids))}
    source = (
        "SELECT n.event_no FROM unnest(%(events)s::text[]) AS w (event_id) CROSS JOIN LATERAL ("
        "SELECT n.event_no FROM synrepl._room_events n WHERE n.event_id = w.event_id OFFSET 0) AS n"
    )
    sql = viewer_sql(history, viewer)
    seen = seen_events(user.txn, source, params, sql, "found.event_no", planned_once=True)
    return {each.event_id: each for each in seen}


def seen_by_server(
    txn: Transaction, room: RoomRow, server: str, numbers: Collection[int]
) -> dict[int, ServedEvent]:
    """What a server sees of some events, by number.

    Those that are not of the room, and those that nobody may see, are left out.
    """
    if not numbers:
        return {}
    txn.execute(
        "SELECT e.event_no, e.event_id, e.sender, e.audience, e.group_after, e.redacted_by,"
        f" {is_erased_sql('e.sender')}"
        " FROM synrepl._room_events e"
        f" WHERE e.event_no = ANY (%s::bigint[]) AND e.room_no = %s AND e.audience & {NOBODY_BIT} = 0",
        (list(numbers), room.room_no),
    )
    rows = txn.fetchall()
    # Other history needs no membership.
    restricted = (HistoryVisibility.JOINED, HistoryVisibility.INVITED)
    groups = {row[4] for row in rows if row[3] & 0b11 in restricted}
    memberships = server_memberships(txn, room, server, groups)
    found: dict[int, ServedEvent] = {}
    for event_no, event_id, sender, packed, group, redacted_by, is_erased in rows:
        audience = unpack_audience(packed, event_id, sender, None)
        if audience is None:
            continue
        at = {server: membership_text(memberships[group])} if group in memberships else {}
        verdict = visible_to_server(audience, server, at, {sender} if is_erased else ())
        found[event_no] = ServedEvent(event_no, event_id, verdict, redacted_by)
    return found
