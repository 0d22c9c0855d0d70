"""Reads what a user's rooms say: timelines, states at their start, summaries; many rooms in few statements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from synrepl.positions.vector import PositionVector
from synrepl.rooms import StateKey, Viewer, stripped_event
from synrepl.services.rooms.timelines.client_events import (
    ClientEventMaker,
    EntryOfRoom,
    EventOfRoom,
    stripped_events,
)
from synrepl.services.rooms.timelines.client_filter import ClientFilter
from synrepl.services.rooms.timelines.room_answers import (
    changed_entries,
    room_timeline,
    summary_for,
    wanted_entries,
)
from synrepl.services.rooms.timelines.rooms_to_read import RoomsToRead
from synrepl.services.rooms.timelines.updates import (
    ClientEvent,
    InvitedRoom,
    JoinedRoom,
    LeftRoom,
    RoomsUpdate,
    RoomTimeline,
    TimelineReader,
)
from synrepl.storage.database import Transaction
from synrepl.storage.federation.remote_memberships import shown_states
from synrepl.storage.rooms.timelines.cited_members import cited_members
from synrepl.storage.rooms.timelines.room_entries import (
    MEMBER,
    Boundary,
    StateChanges,
    covered_tokens,
    current_entries,
    ends,
    entries_before,
    senders_of,
    state_changes,
    state_changes_after,
)
from synrepl.storage.rooms.timelines.room_summaries import room_summaries
from synrepl.storage.rooms.timelines.shown_events import RoomWindow, ShownPart, newest_shown
from synrepl.storage.rooms.timelines.user_rooms import UserRoom

#: Types of the state events that an invitation shows of a room.
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


class UpdateReader:
    """Reads one update, in a transaction.

    :param since: events that it covers are known to the client; of new rooms none are
    :param rooms: what is read
    :param state_after: whether states are those at the end of timelines
    """

    def __init__(
        self,
        txn: Transaction,
        reader: TimelineReader,
        since: PositionVector,
        rooms: RoomsToRead,
        wanted: ClientFilter,
        now_ms: int,
        *,
        state_after: bool,
    ) -> None:
        self._txn = txn
        self._reader = reader
        self._since = since
        self._rooms = rooms
        self._upto = rooms.upto
        self._wanted = wanted
        self._state_after = state_after
        self._maker = ClientEventMaker(txn, reader, now_ms, wanted.event_fields)

    def read(self) -> RoomsUpdate:
        """The update; rooms that the user was in all the time are left out where nothing is new."""
        rooms = self._rooms
        members = [*rooms.new, *rooms.changed]
        parts = self._parts(rooms)
        changes = state_changes(
            self._txn,
            [
                *((r.room_no, r.room_id) for r in rooms.changed if r.room_no not in rooms.whole),
                *((r.room_no, r.room_id) for r in rooms.left if r.room_no in rooms.left_since),
            ],
            self._since,
            self._upto,
        )
        last = {r.room_no: r.stream_id for r in rooms.left}
        changes = {
            number: _upto(each, last[number]) if number in last else each
            for number, each in changes.items()
        }
        whole = {r.room_no for r in rooms.new} | set(rooms.whole)
        whole |= {number for number, each in changes.items() if self._needs_whole(each)}
        told = [*members, *rooms.left]
        seen_whole = [each for each in members if each.room_no in whole]
        # Of a room that the client learns of when its user has left it, it has no state yet.
        seen_whole += [each for each in rooms.left if self._is_new_to_client(each, rooms)]
        states = self._states(seen_whole, parts)
        states |= {
            room.room_no: self._changed_state(parts[room.room_no], changes[room.room_no])
            for room in (*rooms.changed, *rooms.left)
            if room.room_no in changes and room.room_no not in states
        }
        states |= self._lazy_members(
            [each for each in rooms.changed if each.room_no not in whole], parts, states
        )
        entries = [
            EntryOfRoom(room.room_no, room.version, number)
            for room in told
            for number in states.get(room.room_no, {}).values()
        ]
        shown = [
            EventOfRoom(room.room_no, room.version, each)
            for room in told
            for each in parts[room.room_no].events
        ]
        made = self._maker.make(shown, entries)
        damaged = dict(made.damaged)
        summaries = room_summaries(
            self._txn,
            [
                each.room_no
                for each in members
                # What is known of the members of a partial room says nothing about it.
                if not each.is_partial
                and (each.room_no in whole or _has_members(changes.get(each.room_no)))
            ],
        )
        joined: dict[str, JoinedRoom] = {}
        new = {each.room_no for each in rooms.new}
        for room in sorted(members, key=lambda each: (-each.newest, each.room_id)):
            number = room.room_no
            part, state = parts[number], states.get(number, {})
            is_silent = not part.events and not part.is_limited and not state
            if number in damaged or (is_silent and number not in whole):
                continue
            joined[room.room_id] = JoinedRoom(
                self._timeline(room, part, made.events),
                wanted_entries(state, made.events, self._wanted.room.state),
                summary_for(self._reader.user_id, summaries.get(number)),
                is_new=number in new,
            )
        left: dict[str, LeftRoom] = {}
        for room in rooms.left:
            if room.room_no not in damaged:
                part = parts[room.room_no]
                state = states.get(room.room_no, {})
                left[room.room_id] = LeftRoom(
                    self._timeline(room, part, made.events),
                    wanted_entries(state, made.events, self._wanted.room.state),
                )
        invited, more = self._stripped(self._not_by_ignored(rooms.invited))
        knocked, others = self._stripped(rooms.knocked)
        names = {r.room_no: r.room_id for r in (*told, *rooms.invited, *rooms.knocked)}
        reasons = {names[number]: text for number, text in {**damaged, **more, **others}.items()}
        return RoomsUpdate(joined, invited, knocked, left, reasons, self._upto)

    # -- timelines --------------------------------------------------------------------

    def _parts(self, rooms: RoomsToRead) -> Mapping[int, ShownPart]:
        last = self._upto.highest
        windows = [
            *(RoomWindow(each, False, last) for each in rooms.changed),
            *(RoomWindow(each, True, last) for each in rooms.new),
            *(
                RoomWindow(
                    each,
                    each.room_no not in rooms.left_since,
                    each.stream_id,
                    each.room_no in rooms.never_joined,
                )
                for each in rooms.left
            ),
        ]
        windows = [
            each._replace(is_purged=True) if each.room.room_no in rooms.purged else each
            for each in windows
        ]
        timeline = self._wanted.room.timeline
        wanted = [each for each in windows if timeline.allows_room(each.room.room_id)]
        viewer = Viewer(self._reader.user_id, ignored=self._reader.ignored)
        found = newest_shown(
            self._txn, viewer, wanted, self._since, self._upto, timeline.count, timeline.sql()
        )
        nothing = ShownPart((), False)
        return {each.room.room_no: found.get(each.room.room_no, nothing) for each in windows}

    def _timeline(
        self, room: UserRoom, part: ShownPart, events: Mapping[int, ClientEvent]
    ) -> RoomTimeline:
        last = self._upto.highest if room.membership == "join" else room.stream_id
        return room_timeline(part, events, self._upto, last, room.topological)

    # -- states -----------------------------------------------------------------------

    @staticmethod
    def _is_new_to_client(room: UserRoom, rooms: RoomsToRead) -> bool:
        """Whether the state of a room that the user left is wanted whole, as far as the user may know it."""
        was_told = room.room_no in rooms.left_since and room.room_no not in rooms.purged
        return not was_told and room.room_no not in rooms.never_joined

    def _needs_whole(self, changes: StateChanges) -> bool:
        """Whether what changed does not say what the state is now.

        A writer that the client's process was behind may have changed an entry before another did, whose change
        the client has.
        """
        known = self._since.highest
        return changes.is_many or any(token <= known for token, _, _ in changes.changes)

    def _states(
        self, rooms: Sequence[UserRoom], parts: Mapping[int, ShownPart]
    ) -> dict[int, dict[StateKey, int]]:
        """Whole states of rooms: at the start of their timelines, or at the end."""
        if not rooms:
            return {}
        members = None
        if self._wanted.room.lazy_load_members:
            members = {
                (room.room_no, user)
                for room in rooms
                for user in (
                    self._reader.user_id,
                    *(each.sender for each in parts[room.room_no].events),
                )
            }
        numbers = [each.room_no for each in rooms]
        current = current_entries(self._txn, numbers, members)
        boundaries: dict[int, Boundary] = {}
        if self._upto.highest > self._upto.linear or any(
            room.newest > self._upto.linear for room in rooms
        ):
            boundaries = ends(self._txn, numbers, self._upto)
        for room in rooms:
            if room.membership != "join":
                upto = self._upto.lowered(room.stream_id)
                boundaries |= ends(self._txn, [room.room_no], upto)
        if not self._state_after:
            for room in rooms:
                # What came as history has not changed the current state since.
                live = [e for e in parts[room.room_no].events if e.ordering.stream > 0]
                if live:
                    first = min(live, key=lambda each: each.ordering.stream)
                    boundaries[room.room_no] = Boundary(first.ordering.stream, first.group_before)
        found = {
            number: {each.key: each.event_no for each in entries}
            for number, entries in current.items()
        }
        self._roll_back(rooms, found, boundaries, parts, members)
        if members is not None:
            self._add_cited(rooms, parts, found)
        return found

    def _add_cited(
        self,
        rooms: Sequence[UserRoom],
        parts: Mapping[int, ShownPart],
        states: Mapping[int, dict[StateKey, int]],
    ) -> None:
        """Add the memberships of senders that are in no state yet, because the room is partial."""
        shown = {
            each.event_no
            for room in rooms
            if room.is_partial
            for each in parts[room.room_no].events
        }
        for (number, user), event_no in cited_members(self._txn, shown).items():
            if event_no not in shown:
                states[number].setdefault((MEMBER, user), event_no)

    def _roll_back(
        self,
        rooms: Sequence[UserRoom],
        states: Mapping[int, dict[StateKey, int]],
        boundaries: Mapping[int, Boundary],
        parts: Mapping[int, ShownPart],
        members: Collection[tuple[int, str]] | None,
    ) -> None:
        """Take back what changed from a place in the stream on, but for what ``upto`` covers and no timeline shows."""
        after = [
            (room.room_no, room.room_id, boundaries[room.room_no].stream_id - 1)
            for room in rooms
            if room.room_no in boundaries
        ]
        changed = state_changes_after(self._txn, after)
        state_only = {each.room_no: each.state_only for each in rooms}
        purged = {each.room_no: each.purged for each in rooms}
        tokens = {token for each in changed.values() for token, _, _ in each.changes}
        covered = covered_tokens(self._txn, tokens | set(state_only.values()), self._upto)
        wanted: list[tuple[int, int, StateKey]] = []
        ends_at = {r.room_no: r.stream_id for r in rooms if r.membership != "join"}
        for number, each in changed.items():
            end = ends_at.get(number, self._upto.highest)
            last = {
                key: event_no
                for token, key, event_no in each.changes
                if token in covered and token <= end
            }
            shown = set() if self._state_after else {e.event_no for e in parts[number].events}
            keys = {key for _, key, _ in each.changes}
            is_purged = purged[number] >= boundaries[number].stream_id
            if each.is_many or is_purged or state_only[number] not in covered:
                keys |= states[number].keys()
            for key in keys:
                if members is not None and key[0] == MEMBER and (number, key[1]) not in members:
                    continue
                if key in last and last[key] not in shown:
                    _set(states[number], key, last[key])
                else:
                    wanted.append((number, boundaries[number].group_before, key))
        for (number, key), event_no in entries_before(self._txn, wanted).items():
            _set(states[number], key, event_no)

    def _changed_state(self, part: ShownPart, changes: StateChanges) -> dict[StateKey, int]:
        """What a client has to learn of a state besides the timeline."""
        members = None
        if self._wanted.room.lazy_load_members:
            members = {self._reader.user_id, *(each.sender for each in part.events)}
        return changed_entries(part, changes.changes, members, state_after=self._state_after)

    def _lazy_members(
        self,
        rooms: Sequence[UserRoom],
        parts: Mapping[int, ShownPart],
        states: Mapping[int, Mapping[StateKey, int]],
    ) -> dict[int, dict[StateKey, int]]:
        """States with the memberships of the senders shown, which a client that loads lazily may lack."""
        if not self._wanted.room.lazy_load_members:
            return {}
        members: set[tuple[int, str]] = set()
        for room in rooms:
            for each in parts[room.room_no].events:
                members.add((room.room_no, each.sender))
        if not members:
            return {}
        numbers = {number for number, _ in members}
        found: dict[int, dict[StateKey, int]] = {}
        entries = current_entries(self._txn, numbers, members, only_members=True)
        for number, listed in entries.items():
            shown = {each.event_no for each in parts[number].events}
            lacking = {e.key: e.event_no for e in listed if e.event_no not in shown}
            found[number] = {**lacking, **states.get(number, {})}
        self._add_cited([each for each in rooms if each.room_no in found], parts, found)
        return found

    # -- invitations ------------------------------------------------------------------

    def _not_by_ignored(self, rooms: Sequence[UserRoom]) -> Sequence[UserRoom]:
        """Invitations but those by users that the reader ignores.

        Source: https://spec.matrix.org/v1.16/client-server-api/#ignoring-users
        """
        if not rooms or not self._reader.ignored:
            return rooms
        inviters = senders_of(self._txn, [each.member_no for each in rooms if each.member_no])
        return [e for e in rooms if inviters.get(e.member_no) not in self._reader.ignored]

    def _stripped(self, rooms: Sequence[UserRoom]) -> tuple[dict[str, InvitedRoom], dict[int, str]]:
        if not rooms:
            return {}, {}
        user = self._reader.user_id
        found = self._stripped_remote([each for each in rooms if each.member_no is None])
        rooms = [each for each in rooms if each.member_no is not None]
        members = {(each.room_no, user) for each in rooms}
        current = current_entries(self._txn, [each.room_no for each in rooms], members)
        numbers: dict[int, list[int]] = defaultdict(list)
        entries: list[EntryOfRoom] = []
        for room in rooms:
            for entry in current[room.room_no]:
                if entry.key[0] in STRIPPED_TYPES or entry.key == (MEMBER, user):
                    numbers[room.room_no].append(entry.event_no)
                    entries.append(EntryOfRoom(room.room_no, room.version, entry.event_no))
        stripped, damaged = stripped_events(self._txn, entries)
        for room in rooms:
            if room.room_no not in damaged:
                state = [stripped[each] for each in numbers[room.room_no] if each in stripped]
                found[room.room_id] = InvitedRoom(state)
        return found, damaged

    def _stripped_remote(self, rooms: Sequence[UserRoom]) -> dict[str, InvitedRoom]:
        """What other servers show of rooms that this one is not in."""
        states = shown_states(self._txn, self._reader.user_id, [each.room_no for each in rooms])
        return {
            room.room_id: InvitedRoom([*shown, stripped_event(own)])
            for room in rooms
            if room.room_no in states
            for own, shown in [states[room.room_no]]
        }


def _set(state: dict[StateKey, int], key: StateKey, event_no: int | None) -> None:
    if event_no is None:
        state.pop(key, None)
    else:
        state[key] = event_no


def _upto(found: StateChanges, last: int) -> StateChanges:
    """The changes up to a stream ordering."""
    return found._replace(changes=[each for each in found.changes if each[0] <= last])


def _has_members(changes: StateChanges | None) -> bool:
    return changes is not None and any(key[0] == MEMBER for _, key, _ in changes.changes)
