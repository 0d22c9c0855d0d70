"""Makes the row of an event from its verdict."""

from __future__ import annotations

from synrepl.rooms import Event, Judged, audience_of, auth_dependencies
from synrepl.storage.rooms.persisting.batch_states import StateWriter
from synrepl.storage.rooms.persisting.room_memory import HISTORY_VISIBILITY
from synrepl.storage.rooms.persisting.view import StoredRoomView
from synrepl.storage.rooms.states.state_handle import StoredState
from synrepl.storage.rooms.tables.events import STAYING_FLAGS, EventFlags, StoredEvent, refusal_text
from synrepl.storage.rooms.visibility.audience import pack_audience, pack_unseen

# Operations on members of an enumeration are slow, and each event has flags.
_OUTLIER = int(EventFlags.OUTLIER)
_REJECTED = int(EventFlags.REJECTED)
_SOFT_FAILED = int(EventFlags.SOFT_FAILED)
_PARTIAL = int(EventFlags.PARTIAL)
_STAYING = int(STAYING_FLAGS)
_UNCONFIRMED = int(EventFlags.UNCONFIRMED)


class EventRows:
    """Makes rows of events, with groups for the states before and after them.

    :param view: of the room; its memory is changed
    """

    def __init__(self, view: StoredRoomView, states: StateWriter) -> None:
        self._view = view
        self._states = states
        self._memory = view.memory

    def row(
        self,
        judged: Judged[StoredState],
        event_no: int,
        old: StoredEvent | None,
        is_in_partial_room: bool = False,
    ) -> StoredEvent:
        """The row of an event without its place in the stream.

        :param old: its row so far
        """
        event = judged.event
        # What is erased stays erased when an outlier gets its state.
        flags = 0 if old is None else old.flags & _STAYING
        before = after = None
        slot = self._states.slot_of(event)
        prev_nos: list[int] = []
        if judged.state_before is None:
            flags |= _OUTLIER
        else:
            self._memory.name_event(event_no, event.event_id)
            parents = [
                self._memory.at[each].state_after
                for each in event.prev_event_ids
                if each in self._memory.at
            ]
            before, after = self._states.groups_of(
                judged, slot, event_no, [each for each in parents if each is not None]
            )
            prev_nos = self._prev_nos(event, event_no)
        is_outlier = judged.state_before is None
        is_unseen = is_outlier or judged.refusal is not None
        audience = pack_unseen(event) if is_unseen else self._audience(judged)
        reason = judged.refusal or judged.soft_failure
        if judged.refusal is not None:
            flags |= _REJECTED
        elif judged.soft_failure is not None:
            flags |= _SOFT_FAILED
        cited = auth_dependencies(event)
        if judged.partial:
            flags |= _PARTIAL
        elif is_in_partial_room and (
            not is_outlier or any(self._memory.rows[each].is_judged_again for each in cited)
        ):
            flags |= _UNCONFIRMED
        numbers = self._view.event_nos(cited)
        return StoredEvent(
            event_no,
            event.event_id,
            self._view.room.room_no,
            event.type,
            slot,
            event.sender,
            event.depth,
            event.origin_server_ts,
            None,
            None if is_outlier else judged.topological,
            prev_nos,
            [numbers[each] for each in cited],
            flags,
            None if reason is None else refusal_text(judged.failed, reason),
            None if old is None else old.redacted_by,
            audience,
            before,
            after,
        )

    def _prev_nos(self, event: Event, event_no: int) -> list[int]:
        """The numbers of the prev events that are here; the others become backward extremities."""
        self._view.load(event.prev_event_ids)
        here = self._memory.rows
        found: list[int] = []
        for each in dict.fromkeys(event.prev_event_ids):
            if each in here and not here[each].is_outlier:
                found.append(here[each].event_no)
            else:
                self._memory.backward.setdefault(each, set()).add(event_no)
        return found

    def _audience(self, judged: Judged[StoredState]) -> int:
        event = judged.event
        keys = [HISTORY_VISIBILITY]
        if event.type == "m.room.member" and event.state_key is not None:
            keys.append((event.type, event.state_key))
        assert judged.state_before is not None
        before = self._view.state_events(judged.state_before, keys)
        soft_failed = judged.soft_failure is not None
        return pack_audience(event, audience_of(event, before, soft_failed=soft_failed))
