"""What a batch changes of memberships: the current ones, and what their history has to tell beyond the events.

From which fact on a user has a membership is told by the user's membership events, in the order of the stream: each counts
from its own fact on. The resolution of states makes exceptions. An older event may become the membership again, or none
may be left. A new event may lose. These are recorded
(:mod:`~synrepl.storage.rooms.tables.membership_history`); usually there are none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from synrepl.rooms import Delta, StateKey
from synrepl.storage.rooms.persisting.batch import RoomBatch
from synrepl.storage.rooms.persisting.batch_facts import FactPlaces
from synrepl.storage.rooms.tables.events import StoredEvent
from synrepl.storage.rooms.tables.heads import MembershipRow
from synrepl.storage.rooms.tables.membership_history import PastMembership, purged_memberships
from synrepl.storage.rooms.tables.pending_event import PendingEvent
from synrepl.storage.rooms.visibility.audience import (
    LEAVE,
    MEMBERSHIPS,
    NEVER_BITS,
    membership_set,
)

_MEMBER = "m.room.member"


class MembershipChanges(NamedTuple):
    """What a batch changes of memberships.

    :ivar current: the current ones that change
    :ivar exceptions: what the history has to tell
    """

    current: Sequence[MembershipRow]
    exceptions: Sequence[PastMembership]


def membership_changes(
    batch: RoomBatch, change: Delta, places: FactPlaces, stream_ids: Sequence[int]
) -> MembershipChanges:
    """What a batch changes of memberships.

    :param change: of the current state
    :param stream_ids: of the facts of ``events``, by place
    """
    current = _current(batch, change, places, stream_ids)
    own = _own_events(batch, places)
    exceptions: dict[tuple[str, int], PastMembership] = {}
    lost = {user: _lost(user, events, change) for user, events in own.items()}
    if any(lost.values()):
        final = {row.user_id: row for row in current}
        before = _memberships_before(batch, [user for user, events in lost.items() if events])
        for user, events in lost.items():
            stays = before.get(user)
            for each in own[user]:
                if each not in events:
                    stays = _membership(each.event.membership)
                    continue
                stream_id = stream_ids[places.live[each.row.event_no]]
                last = final.get(user)
                # An event that no client may see can be the membership, too, by the resolution of states.
                if last is not None and last.stream_id <= stream_id:
                    stays = None if last.event_no is None else last.membership
                exceptions[user, stream_id] = PastMembership(user, stream_id, stays)
    for row in current:
        numbers = [each.row.event_no for each in own.get(row.user_id, ())]
        if row.event_no not in numbers:
            membership = None if row.event_no is None else row.membership
            exceptions[row.user_id, row.stream_id] = PastMembership(
                row.user_id, row.stream_id, membership
            )
    if current and batch.heads.purged_stream_id:
        users = [row.user_id for row in current]
        for past in purged_memberships(batch.txn, batch.room.room_no, users):
            exceptions[past.user_id, past.stream_id] = past
    return MembershipChanges(current, list(exceptions.values()))


def _current(
    batch: RoomBatch, change: Delta, places: FactPlaces, stream_ids: Sequence[int]
) -> list[MembershipRow]:
    """The rows of current memberships that change."""
    members = [(key[1], event_id) for key, event_id in change.entries.items() if key[0] == _MEMBER]
    # Their rows are enough: a room that is joined has very many members, and their JSON is larger.
    rows = batch.view.rows([event_id for _, event_id in members])

    def counts_from(key: StateKey) -> int:
        return stream_ids[places.entries[key]]

    changes = [
        MembershipRow(
            user,
            rows[event_id].event_no,
            _membership_of(rows[event_id]),
            counts_from((_MEMBER, user)),
        )
        for user, event_id in members
    ]
    changes += [
        MembershipRow(user, None, "leave", counts_from((kind, user)))
        for kind, user in change.removed
        if kind == _MEMBER
    ]
    return changes


def _own_events(batch: RoomBatch, places: FactPlaces) -> Mapping[str, Sequence[PendingEvent]]:
    """The live membership events of the batch that count, by user, in the order of the stream."""
    found: dict[str, list[PendingEvent]] = defaultdict(list)
    for each in batch.pending():
        event, row = each.event, each.row
        if event.type != _MEMBER or event.state_key is None or (row.audience or 0) & NEVER_BITS:
            continue
        if row.event_no in places.live:
            found[event.state_key].append(each)
    return found


def _lost(user: str, events: Sequence[PendingEvent], change: Delta) -> Sequence[PendingEvent]:
    """Those of a user's new events that were the membership at no time.

    Those that the last one follows, each citing the one before, were it for a while.
    """
    by_id = {each.event.event_id: each for each in events}
    counted = change.entries.get((_MEMBER, user))
    while counted is not None:
        found = by_id.pop(counted, None)
        cited = () if found is None else found.event.auth_event_ids
        counted = next((each for each in cited if each in by_id), None)
    return list(by_id.values())


def _memberships_before(batch: RoomBatch, users: Sequence[str]) -> Mapping[str, str]:
    """The memberships of users before the batch."""
    if batch.is_new:
        return {}
    state = batch.memory.handle(batch.heads.current_group)
    events = batch.view.state_events(state, [(_MEMBER, user) for user in users])
    return {key[1]: _membership(event.membership) for key, event in events.items()}


def _membership_of(row: StoredEvent) -> str:
    """The membership that an event sets."""
    number = LEAVE if row.audience is None else membership_set(row.audience)
    return MEMBERSHIPS[number] if number < len(MEMBERSHIPS) else MEMBERSHIPS[LEAVE]


def _membership(value: object) -> str:
    return value if isinstance(value, str) and "\0" not in value else "leave"
