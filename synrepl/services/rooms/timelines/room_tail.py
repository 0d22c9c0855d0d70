"""What members of a room are told of its newest events, made of one read that they share.

A user who was in the room at each of these events sees all of them, but for those that nobody sees and those of users
that the user ignores. So it is enough to know that a user was. It is known of everybody who was in the room when the
client last asked, and whose membership has not changed since, at events in the *chain* of the current state: the
state after the newest event is the current one, and the state before each is that after the one before. In between,
only the entries have changed that these events set. Whatever is not of that kind is up to
:class:`~.update_reader.UpdateReader`, which looks the membership at each event up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from synrepl.core.tokens import Token
from synrepl.positions.vector import PositionVector
from synrepl.rooms import Sight, StateKey, Viewer, visible_to_user
from synrepl.services.rooms.timelines.client_events import (
    AnswerSources,
    ClientEventForms,
    EntryOfRoom,
    EventOfRoom,
)
from synrepl.services.rooms.timelines.client_filter import ClientFilter, RoomEventFilter
from synrepl.services.rooms.timelines.room_answers import (
    changed_entries,
    room_timeline,
    summary_for,
    wanted_entries,
)
from synrepl.services.rooms.timelines.updates import ClientEvent, JoinedRoom, TimelineReader
from synrepl.storage.rooms.timelines.room_entries import MEMBER
from synrepl.storage.rooms.timelines.shown_events import ShownEvent, ShownPart
from synrepl.storage.rooms.timelines.stored_tails import StoredTail, TailEvent
from synrepl.storage.rooms.visibility.audience import unpack_audience

#: The membership of those who share a tail.
JOIN = "join"

#: Maximum number of different answers that are kept of a tail.
MAX_ANSWERS = 64

#: A member whom no event is about.
_ANY_MEMBER = Viewer("")


class NotInTail(Exception):
    """The answer does not follow from the tail alone: ask the tables."""


class _SharedAnswer(NamedTuple):
    """An answer for all who ask the same.

    :ivar upto: kept for its identity, as ``wanted`` is: both are the same objects for those who ask at the same time
    """

    upto: PositionVector
    wanted: ClientFilter
    room: JoinedRoom | None


class RoomTail:
    """The newest events of a room, for those who were in it all the time.

    Events are made as of ``now_ms``, so a tail should be used at once.

    :ivar room_id: ID of the room
    :ivar newest: stream ordering of the newest event
    :ivar size: bytes of memory that it takes, about
    """

    def __init__(self, stored: StoredTail, now_ms: int) -> None:
        self._stored = stored
        self._now_ms = now_ms
        self.room_id, self.newest, self.size = stored.room_id, stored.newest, stored.size
        self._shown: Mapping[int, ShownEvent | None] = _shown_to_members(stored)
        self._moved = _moved_users(stored)
        #: Those whose answers differ from those of other members.
        self._concerned = {each.user_id for each in stored.requests.values()}
        if stored.summary is not None and stored.summary.first is not None:
            self._concerned.update(stored.summary.first)
        #: By the stream orderings of the events, the identities of vector and filter, and ``state_after``.
        self._answers: dict[tuple[tuple[Token, ...], int, int, bool], _SharedAnswer] = {}

    def reaches(self, since: PositionVector) -> bool:
        """Whether everything is here that is new since a vector.

        What is not here, it covers, and that is before all that is here.
        """
        read_since = self._stored.since
        return since.linear >= self._stored.floor or (
            read_since is not None and since.covers(read_since)
        )

    def joined_room(
        self,
        reader: TimelineReader,
        since: PositionVector,
        upto: PositionVector,
        wanted: ClientFilter,
        *,
        state_after: bool,
    ) -> JoinedRoom | None:
        """What is new for a user who was in the room as of both vectors; None if nothing is.

        :raises NotInTail: that is not known from the tail
        """
        events = self._new_events(reader.user_id, since, upto)
        if not events:
            return None
        ignored = reader.ignored and any(each.sender in reader.ignored for each in events)
        if ignored or reader.user_id in self._concerned:
            return self._joined_room(reader, events, upto, wanted, state_after=state_after)
        key = tuple([e.ordering.stream for e in events]), id(upto), id(wanted), state_after
        kept = self._answers.get(key)
        if kept is None:
            room = self._joined_room(reader, events, upto, wanted, state_after=state_after)
            if len(self._answers) >= MAX_ANSWERS:
                self._answers.clear()
            kept = self._answers[key] = _SharedAnswer(upto, wanted, room)
        return kept.room

    def _new_events(
        self, user_id: str, since: PositionVector, upto: PositionVector
    ) -> Sequence[TailEvent]:
        """The events between two vectors.

        :raises NotInTail: there may be more, or the user may not have been in the room at each of them
        """
        stored = self._stored
        is_known = self.reaches(since) and since.linear >= max(stored.state_only, stored.purged)
        # Also those that ``upto`` does not cover: who was in the room before them is known from the current state.
        if not is_known or self._moved.get(user_id, 0) > since.linear or stored.damaged is not None:
            raise NotInTail
        # The state of a partial room lacks members, and who loads all of them is not told of it.
        if stored.is_partial:
            raise NotInTail
        events = [
            each
            for each in stored.events
            if since[each.writer or ""] < each.ordering.stream <= upto[each.writer or ""]
        ]
        if any(each.event_no not in self._shown for each in events):
            raise NotInTail
        # What is not covered may have to be told first: the room was moved, and its writers are not equally far.
        if events and any(
            upto[each.writer or ""] < each.ordering.stream < events[-1].ordering.stream
            for each in stored.events
        ):
            raise NotInTail
        # An entry may have changed before it did by another writer, whose change the client has.
        if stored.changes and events and events[0].ordering.stream <= since.highest:
            raise NotInTail
        return events

    def _joined_room(
        self,
        reader: TimelineReader,
        events: Sequence[TailEvent],
        upto: PositionVector,
        wanted: ClientFilter,
        *,
        state_after: bool,
    ) -> JoinedRoom | None:
        stored = self._stored
        part = self._part(reader, events, wanted.room.timeline)
        changes = self._changes(events)
        senders = {each.sender for each in part.events}
        is_lazy = wanted.room.lazy_load_members
        state: dict[StateKey, int] = {}
        if is_lazy:
            shown = {each.event_no for each in part.events}
            members = {(MEMBER, each): stored.members.get(each) for each in senders}
            state = {key: no for key, no in members.items() if no is not None and no not in shown}
        state |= changed_entries(
            part, changes, senders if is_lazy else None, state_after=state_after
        )
        if not (part.events or part.is_limited or state):
            return None
        made = self._made(reader, part, state, wanted)
        summary = None
        if any(key[0] == MEMBER for _, key, _ in changes):
            summary = summary_for(reader.user_id, stored.summary)
        return JoinedRoom(
            room_timeline(part, made, upto, upto.highest, stored.topological),
            wanted_entries(state, made, wanted.room.state),
            summary,
            is_shared=True,
        )

    def _part(
        self, reader: TimelineReader, events: Sequence[TailEvent], wanted: RoomEventFilter
    ) -> ShownPart:
        """The timeline.

        :raises NotInTail: the filter is about the content of events
        """
        if wanted.contains_url is not None:
            raise NotInTail
        if not wanted.allows_room(self.room_id):
            return ShownPart((), False)
        shown: list[ShownEvent] = []
        for each in events:
            found = self._shown[each.event_no]
            is_ignored = each.state_key is None and each.sender in reader.ignored
            if found is not None and not is_ignored and wanted.allows(each.type, each.sender):
                shown.append(found)
        limit = wanted.count
        return ShownPart(shown[-limit:] if limit else (), len(shown) > limit)

    def _changes(self, events: Sequence[TailEvent]) -> list[tuple[Token, StateKey, int | None]]:
        """What changed of the state with these events.

        :raises NotInTail: the whole state has to be read
        """
        tokens = {each.ordering.stream for each in events}
        found: list[tuple[Token, StateKey, int | None]] = []
        for stream_id, key, event_no in self._stored.changes:
            if stream_id in tokens:
                if key is None:
                    raise NotInTail
                found.append((stream_id, key, event_no))
        return found

    def _made(
        self,
        reader: TimelineReader,
        part: ShownPart,
        state: Mapping[StateKey, int],
        wanted: ClientFilter,
    ) -> Mapping[int, ClientEvent]:
        stored = self._stored
        sent = {
            event_id: request.txn_id
            for event_id, request in stored.requests.items()
            if (request.user_id, request.device_id) == (reader.user_id, reader.device_id)
        }
        sources = AnswerSources(stored.sources, stored.replaced, sent)
        forms = ClientEventForms(self._now_ms, wanted.event_fields)
        made: dict[int, ClientEvent] = {}
        for event in part.events:
            shown = EventOfRoom(stored.room_no, stored.version, event)
            made[event.event_no] = forms.shown(shown, sources)
        for number in state.values():
            if number not in made:
                entry = EntryOfRoom(stored.room_no, stored.version, number)
                made[number] = forms.entry(entry, sources)
        return made


def _shown_to_members(stored: StoredTail) -> dict[int, ShownEvent | None]:
    """The events as somebody sees them who was in the room; None: hidden from everybody.

    Events are left out if it does not follow from the current state who was in the room at them, and if there is a gap
    before them, which the timeline begins after.
    """
    found: dict[int, ShownEvent | None] = {}
    group = stored.current_group
    for event in reversed(stored.events):
        audience = unpack_audience(event.audience, event.event_id, event.sender, event.state_key)
        sight = Sight.HIDDEN
        if audience is not None:
            sight = visible_to_user(audience, _ANY_MEMBER, JOIN).sight
        is_in_chain = event.group_after == group
        if is_in_chain:
            group = event.group_before
        if sight is Sight.HIDDEN:
            found[event.event_no] = None
        elif is_in_chain and not event.is_after_gap:
            found[event.event_no] = _shown_event(event)
    return found


def _shown_event(event: TailEvent) -> ShownEvent:
    return ShownEvent(
        event.event_no,
        event.event_id,
        event.ordering,
        event.type,
        event.slot,
        event.sender,
        event.sent_at,
        event.redacted_by,
        event.group_before,
        JOIN,
        event.redacted_by is None,
        event.is_after_gap,
    )


def _moved_users(stored: StoredTail) -> dict[str, Token]:
    """Users whose membership events or changes are about, with the last stream ordering of these."""
    found: dict[str, Token] = {}
    keys = [(c.stream_id, c.key) for c in stored.changes if c.key is not None]
    keys += [
        (e.ordering.stream, (e.type, e.state_key)) for e in stored.events if e.state_key is not None
    ]
    for stream_id, (kind, user) in keys:
        if kind == MEMBER:
            found[user] = max(stream_id, found.get(user, 0))
    return found
