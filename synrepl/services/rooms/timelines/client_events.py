"""Makes events for clients from stored ones, with what a client gets besides."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec import Raw

from synrepl.rooms import (
    ClientForm,
    ClientUnsigned,
    client_form,
    content_json,
    field_path,
    room_version,
    selected_fields,
    stripped_event,
)
from synrepl.services.rooms.timelines.updates import ClientEvent, TimelineReader
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.timelines.event_sources import (
    AnswerRows,
    EventAtState,
    EventSource,
    WantedEvent,
    read_answer_rows,
    read_current_members,
    read_sources,
    sources_from,
)
from synrepl.storage.rooms.timelines.shown_events import ShownEvent


class EventToMake(Protocol):
    """What is needed to know of an event of a timeline, besides what it is made of; as :class:`.ShownEvent` has it."""

    @property
    def event_no(self) -> int: ...

    @property
    def event_id(self) -> str: ...

    @property
    def membership(self) -> str: ...

    @property
    def is_whole(self) -> bool: ...


class EventOfRoom(NamedTuple):
    """An event of a timeline, in its room."""

    room_no: int
    version: str
    shown: ShownEvent


class EntryOfRoom(NamedTuple):
    """A state event, in its room.

    :ivar version: of the room
    """

    room_no: int
    version: str
    event_no: int


class MadeEvents(NamedTuple):
    """Events for clients by number, and the rooms that have a damaged one, by number, with the reason."""

    events: Mapping[int, ClientEvent]
    damaged: Mapping[int, str]


class AnswerSources(NamedTuple):
    """What events for one client are made of.

    :ivar events: stored events by number, with the redactions that apply to them
    :ivar replaced: by the number of a state event, that of the event that it replaced
    :ivar sent: by event ID, the transaction IDs under which the client's device sent events
    """

    events: Mapping[int, EventSource]
    replaced: Mapping[int, int]
    sent: Mapping[str, str]


class ClientEventForms:
    """Makes events for clients from what was read of them.

    :param now_ms: milliseconds since 1970
    :param fields: paths of the fields that events have; None: all
    :param room_ids: IDs of rooms by number, where events name their room
    """

    def __init__(
        self,
        now_ms: int,
        fields: Sequence[str] | None = None,
        room_ids: Mapping[int, str] | None = None,
    ) -> None:
        self._now_ms = now_ms
        self._paths = None if fields is None else [field_path(each) for each in fields]
        self._room_ids = room_ids or {}

    def shown(self, event: tuple[int, str, EventToMake], sources: AnswerSources) -> ClientEvent:
        """An event of a timeline.

        :param event: number and version of the room, and the event
        :raises KeyError: its JSON was not read
        """
        room_no, version, shown = event
        source = sources.events[shown.event_no]
        unsigned = self._unsigned(source, version, sources)
        unsigned.membership = shown.membership
        if shown.event_id in sources.sent:
            unsigned.transaction_id = sources.sent[shown.event_id]
        old = sources.events.get(sources.replaced.get(shown.event_no, 0))
        if old is not None:
            unsigned.prev_content = Raw(content_json(old.json))
            unsigned.replaces_state = old.event_id
        return self._event(room_no, version, source, unsigned)

    def entry(self, entry: EntryOfRoom, sources: AnswerSources) -> ClientEvent:
        """A state event.

        :raises KeyError: its JSON was not read
        """
        source = sources.events[entry.event_no]
        unsigned = self._unsigned(source, entry.version, sources)
        return self._event(entry.room_no, entry.version, source, unsigned)

    def _unsigned(
        self, source: EventSource, version: str, sources: AnswerSources
    ) -> ClientUnsigned:
        unsigned = ClientUnsigned(age=self._now_ms - source.sent_at)
        redaction = sources.events.get(source.redacted_by or 0)
        if redaction is not None:
            form = client_form(redaction.json, redaction.event_id, room_version(version))
            unsigned.redacted_because = Raw(form.json)
        return unsigned

    def _event(
        self, room_no: int, version: str, source: EventSource, unsigned: ClientUnsigned
    ) -> ClientEvent:
        form: ClientForm = client_form(
            source.json,
            source.event_id,
            room_version(version),
            unsigned,
            self._room_ids.get(room_no),
        )
        json = form.json
        if self._paths is not None:
            json = selected_fields(json, self._paths)
        return ClientEvent(
            form.event_id, form.type, form.sender, form.state_key, source.stream_id, json
        )


class ClientEventMaker:
    """Reads and makes the events of one answer.

    :param now_ms: milliseconds since 1970
    :param fields: paths of the fields that events have; None: all
    :param room_ids: IDs of rooms by number, where events name their room
    """

    def __init__(
        self,
        txn: Transaction,
        reader: TimelineReader,
        now_ms: int,
        fields: Sequence[str] | None = None,
        room_ids: Mapping[int, str] | None = None,
    ) -> None:
        self._txn = txn
        self._reader = reader
        self._forms = ClientEventForms(now_ms, fields, room_ids)

    def make(
        self, shown: Sequence[EventOfRoom], entries: Collection[EntryOfRoom] = ()
    ) -> MadeEvents:
        """Events of timelines, and state events; each by its number."""
        rows = read_answer_rows(
            self._txn,
            [EventAtState(s.event_no, room_no, s.group_before, s.slot) for room_no, _, s in shown],
            {each.event_no for each in entries},
            self._reader.user_id,
            self._reader.device_id,
        )
        return made_events(self._forms, rows, shown, entries)

    def current_members(self, room_no: int, version: str) -> MadeEvents:
        """The memberships in the current state of a room."""
        numbers, rows = read_current_members(self._txn, room_no)
        entries = [EntryOfRoom(room_no, version, each) for each in numbers]
        return made_events(self._forms, rows, (), entries)


def made_events(
    forms: ClientEventForms,
    rows: AnswerRows,
    shown: Sequence[tuple[int, str, EventToMake]],
    entries: Collection[EntryOfRoom],
) -> MadeEvents:
    """Events of timelines, and state events, from what was read of them; each by its number.

    :param shown: each with number and version of its room
    """
    wanted = {each.event_no: WantedEvent(each.event_no, each.version) for each in entries}
    for _, version, event in shown:
        wanted[event.event_no] = WantedEvent(event.event_no, version, event.is_whole)
    others = rows.rooms.keys() - wanted.keys()
    if others:
        versions = {each.room_no: each.version for each in entries}
        versions |= {room_no: version for room_no, version, _ in shown}
        for number in others:
            wanted[number] = WantedEvent(number, versions[rows.rooms[number]])
    read = sources_from(rows.rows, wanted)
    sources = AnswerSources(read.events, rows.replaced, rows.sent)
    events: dict[int, ClientEvent] = {}
    damaged: dict[int, str] = {}
    for each in shown:
        room_no, _, event = each
        if event.event_no in sources.events:
            events[event.event_no] = forms.shown(each, sources)
        else:
            damaged[room_no] = str(read.damaged[event.event_no])
    for entry in entries:
        if entry.event_no in events:
            continue
        if entry.event_no in sources.events:
            events[entry.event_no] = forms.entry(entry, sources)
        else:
            damaged[entry.room_no] = str(read.damaged[entry.event_no])
    return MadeEvents(events, damaged)


def stripped_events(
    txn: Transaction, entries: Collection[EntryOfRoom]
) -> tuple[dict[int, bytes], dict[int, str]]:
    """State events in stripped form by number, and damaged rooms by number with the reason."""
    wanted = [WantedEvent(each.event_no, each.version) for each in entries]
    sources = read_sources(txn, wanted)
    found = {number: stripped_event(each.json) for number, each in sources.events.items()}
    rooms = {each.event_no: each.room_no for each in entries}
    return found, {rooms[number]: str(error) for number, error in sources.damaged.items()}


def in_order(events: Mapping[int, ClientEvent], numbers: Iterable[int]) -> list[ClientEvent]:
    """Events by their numbers; those that were not made are left out."""
    return [events[number] for number in numbers if number in events]
