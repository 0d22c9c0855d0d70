"""Reads rooms: events, states, auth chains, ends and figures, each read in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from synrepl.rooms import Certainty, StateKey, Viewer
from synrepl.storage.database import Database, Isolation, Transaction
from synrepl.storage.rooms.reading.auth_reading import (
    ChainMemory,
    auth_chain,
    auth_difference,
    conflicted_subgraph,
)
from synrepl.storage.rooms.reading.event_access import EventCopy, EventNotStored, read_events
from synrepl.storage.rooms.reading.explaining_events import (
    explain_auth,
    explain_refusal,
    explain_visibility,
)
from synrepl.storage.rooms.reading.explaining_states import explain_state
from synrepl.storage.rooms.reading.explanations import (
    AuthExplanation,
    RefusalExplanation,
    StateExplanation,
    VisibilityExplanation,
)
from synrepl.storage.rooms.reading.graph_slice import GraphEvent, graph_slice
from synrepl.storage.rooms.reading.messages import (
    Messages,
    ServedEvents,
    read_backfill,
    read_messages,
    read_missing_events,
)
from synrepl.storage.rooms.reading.partial_states import (
    ResyncProgressRow,
    resync_progress,
    resyncs,
    state_certainty,
)
from synrepl.storage.rooms.reading.resync_attempts import ServerAttempt, attempts
from synrepl.storage.rooms.reading.room_overview import (
    RoomEnds,
    RoomFigures,
    RoomMember,
    check_limit,
    list_rooms,
    room_ends,
    room_figures,
    room_members,
)
from synrepl.storage.rooms.reading.state_reading import (
    StateAtEvent,
    StateChange,
    current_group,
    difference_of_groups,
    locate_states,
    look_up_entries,
    read_state,
)
from synrepl.storage.rooms.states.named_entries import NamedEntries
from synrepl.storage.rooms.tables.numbers import require_room
from synrepl.storage.rooms.visibility.pages import PageRequest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RoomStore:
    """The rooms in a database, to be read.

    Each method runs one read-only transaction over one snapshot, and is bounded: what could be long comes
    in pages, and what is asked for by name is limited. What is damaged is never returned: methods raise
    ``CorruptEvent``, ``MissingJson``, ``CorruptState`` or ``NumberWithoutRow`` instead. All of them may also raise
    ``DatabaseAway`` and ``DatabaseBusy``.
    """

    database: Database
    #: What is cached: numbers never change their meaning while their room has the same epoch.
    names: NamedEntries = field(default_factory=NamedEntries, repr=False)
    chains: ChainMemory = field(default_factory=ChainMemory, repr=False)

    # Events

    async def event(self, event_id: str, *, as_it_came: bool = False) -> EventCopy:
        """An event of any kind with its JSON: in its redacted form if it was redacted.

        :param as_it_came: return the bytes that came, redacted or not
        :raises EventNotStored: it is not here
        """
        found = await self.events([event_id], as_it_came=as_it_came)
        if event_id not in found:
            raise EventNotStored(event_id=event_id.replace("\0", "\ufffd"))
        return found[event_id]

    async def events(
        self, event_ids: Sequence[str], *, as_it_came: bool = False
    ) -> dict[str, EventCopy]:
        """Events by ID; those that are not here are left out.

        :raises TooManyNamed: more than 1,000
        """
        return await self._read(
            "events", lambda txn: read_events(txn, event_ids, as_it_came=as_it_came)
        )

    # States

    async def state_ids_at(
        self,
        event_id: str,
        *,
        before: bool = False,
        keys: Collection[StateKey] | None = None,
        types: Collection[str] | None = None,
        rejected: bool = False,
        partial: bool = False,
        room_id: str | None = None,
    ) -> dict[StateKey, str]:
        """The state after an event, as event IDs: whole, or the entries of some keys and types.

        A whole state is checked against its digest. Entries are looked up one by one, so asking for a few
        is quick however large the state is.

        :param before: the state before the event instead
        :param rejected: answer for a rejected event, too; its states before and after are the same
        :param partial: answer with partial state, too
        :param room_id: the room that the event must be in
        :raises EventNotStored: :raises EventIsOutlier: :raises EventRejected: :raises PartialEvent:
        :raises EventInOtherRoom:
        """
        at = StateAtEvent(event_id, before, rejected, partial)

        def read(txn: Transaction) -> dict[StateKey, str]:
            room, (group,) = locate_states(txn, [at], room_id)
            return read_state(txn, self.names, room, group, keys, types)

        return await self._read("state at an event", read)

    async def state_at(
        self,
        event_id: str,
        *,
        before: bool = False,
        keys: Collection[StateKey] | None = None,
        types: Collection[str] | None = None,
        room_id: str | None = None,
    ) -> dict[StateKey, EventCopy]:
        """The same as events; for a large state ask for IDs, and for the events page by page.

        :raises TooManyNamed: the state has more than 1,000 entries
        """
        at = StateAtEvent(event_id, before)

        def read(txn: Transaction) -> dict[StateKey, EventCopy]:
            room, (group,) = locate_states(txn, [at], room_id)
            return self._with_json(txn, read_state(txn, self.names, room, group, keys, types))

        return await self._read("state at an event", read)

    async def entries_at(
        self, event_ids: Sequence[str], keys: Collection[StateKey], *, before: bool = False
    ) -> list[dict[StateKey, str]]:
        """Entries of the states after (or before) many events of one room, in the order of the events.

        :raises TooManyNamed: more than 1,000 events or keys, or 20,000 entries
        :raises EventInOtherRoom: they are not all in one room
        """
        if not event_ids:
            return []
        return await self._read(
            "entries at events",
            lambda txn: look_up_entries(txn, event_ids, keys, before=before),
        )

    async def state_difference(
        self, older: str, newer: str, *, before: bool = False, room_id: str | None = None
    ) -> StateChange:
        """What differs between the states after (or before) two events of one room.

        :raises EventInOtherRoom: they are in two rooms
        """
        wanted = [StateAtEvent(older, before), StateAtEvent(newer, before)]

        def read(txn: Transaction) -> StateChange:
            room, groups = locate_states(txn, wanted, room_id)
            return difference_of_groups(txn, self.names, room, *groups)

        return await self._read("difference of states", read)

    async def current_state_ids(
        self,
        room_id: str,
        *,
        keys: Collection[StateKey] | None = None,
        types: Collection[str] | None = None,
    ) -> dict[StateKey, str]:
        """The current state of a room, as event IDs: whole, or the entries of some keys and types.

        :raises UnknownRoom: it is not here
        """

        def read(txn: Transaction) -> dict[StateKey, str]:
            room, group = current_group(txn, room_id)
            return read_state(txn, self.names, room, group, keys, types)

        return await self._read("current state", read)

    async def current_state(
        self,
        room_id: str,
        *,
        keys: Collection[StateKey] | None = None,
        types: Collection[str] | None = None,
    ) -> dict[StateKey, EventCopy]:
        """The same as events.

        :raises UnknownRoom: it is not here
        :raises TooManyNamed: it has more than 1,000 entries
        """

        def read(txn: Transaction) -> dict[StateKey, EventCopy]:
            room, group = current_group(txn, room_id)
            return self._with_json(txn, read_state(txn, self.names, room, group, keys, types))

        return await self._read("current state", read)

    # Auth chains

    async def auth_chain(self, event_ids: Sequence[str]) -> list[str]:
        """The IDs of the events in the auth chains of some events, those first that others cite.

        :raises EventNotStored: :raises TooManyNamed: :raises ChainTooLong:
        """
        return await self._read("auth chain", lambda txn: auth_chain(txn, event_ids))

    async def auth_difference(self, room_id: str, states: Sequence[Collection[str]]) -> set[str]:
        """The events in the full auth chains of some states, but not of all.

        :param states: for each state, the IDs of its events
        :raises UnknownRoom: :raises EventNotStored: :raises EventInOtherRoom:
        """
        if not states:
            return set()
        return await self._read(
            "auth difference",
            lambda txn: auth_difference(txn, self.chains, require_room(txn, room_id), states),
        )

    async def conflicted_subgraph(self, room_id: str, event_ids: Collection[str]) -> set[str]:
        """Some events, and all events on an auth chain path from one of them to another.

        :raises UnknownRoom: :raises EventNotStored: :raises EventInOtherRoom:
        """
        return await self._read(
            "conflicted subgraph",
            lambda txn: conflicted_subgraph(
                txn, self.chains, require_room(txn, room_id), event_ids
            ),
        )

    # Rooms

    async def rooms(self, after: str | None = None, limit: int = 100) -> list[RoomFigures]:
        """Rooms with their figures, in the order of their IDs.

        :param after: the ID of the last room of the page before
        :raises BadRoomLimit: not from 1 to 1,000
        """
        return await self._read("list rooms", lambda txn: list_rooms(txn, after, limit))

    async def room(self, room_id: str) -> RoomFigures:
        """One room with its figures.

        :raises UnknownRoom: it is not here
        """
        return await self._read("room", lambda txn: room_figures(txn, room_id))

    async def heads(self, room_id: str) -> RoomEnds:
        """The forward and backward extremities of a room, and the events that it lacks.

        :raises UnknownRoom: it is not here
        """
        return await self._read("heads", lambda txn: room_ends(txn, room_id))

    async def resyncs(self, *, ended: bool = False, limit: int = 100) -> list[ResyncProgressRow]:
        """How far the completions of partial rooms are, those first that began first.

        :param ended: also those that have ended, the last one last
        :raises BadRoomLimit: not from 1 to 1,000
        """
        check_limit(limit)
        return await self._read("partial rooms", lambda txn: resyncs(txn, limit, ended=ended))

    async def resync(
        self, room_id: str
    ) -> tuple[ResyncProgressRow | None, Sequence[ServerAttempt]]:
        """How far the completion of one room is, None if it was never partial; and what came of asking each server.

        :raises UnknownRoom: it is not here
        """

        def read(txn: Transaction) -> tuple[ResyncProgressRow | None, Sequence[ServerAttempt]]:
            room_no = require_room(txn, room_id).room_no
            return resync_progress(txn, room_no), attempts(txn, room_no)

        return await self._read("partial room", read)

    async def certainty(
        self, room_id: str, server_name: str, keys: Collection[StateKey] | None = None
    ) -> Certainty:
        """How reliable entries of a room's current state are together, in a room that may be partial.

        :param server_name: of this server
        :param keys: of the entries; None: the whole state
        :raises UnknownRoom: it is not here
        """

        def read(txn: Transaction) -> Certainty:
            return state_certainty(txn, require_room(txn, room_id).room_no, keys, server_name)

        return await self._read("certainty", read)

    async def members(
        self,
        room_id: str,
        *,
        membership: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[RoomMember]:
        """Users with a membership in the current state, in the order of their IDs.

        :param membership: only those with this membership
        :param after: the ID of the last user of the page before
        :raises UnknownRoom: :raises BadRoomLimit:
        """
        return await self._read(
            "members", lambda txn: room_members(txn, room_id, membership, after, limit)
        )

    async def graph(
        self, room_id: str, until: str | None = None, limit: int = 100
    ) -> list[GraphEvent]:
        """A part of a room's event graph: its newest events, or those up to an event; oldest first.

        :raises UnknownRoom: :raises EventNotStored: :raises EventInOtherRoom:
        :raises EventIsOutlier: outliers are not in the graph
        :raises BadRoomLimit: not from 1 to 2,000
        """
        return await self._read("graph", lambda txn: graph_slice(txn, room_id, until, limit))

    # What users and other servers get

    async def messages(self, room_id: str, viewer: Viewer, request: PageRequest) -> Messages:
        """A page of the events of a room that a user may see.

        :raises UnknownRoom: :raises TooManyIgnored:
        :raises BadPageSize: not from 1 to 1,000
        """
        return await self._read(
            "messages", lambda txn: read_messages(txn, room_id, viewer, request)
        )

    async def backfill(
        self, room_id: str, server: str, event_ids: Collection[str], limit: int = 100
    ) -> ServedEvents:
        """Some events and those before them, newest first, as another server may see them; at most 100.

        :raises UnknownRoom: :raises TooManyEventsNamed:
        """
        return await self._read(
            "backfill", lambda txn: read_backfill(txn, room_id, server, event_ids, limit)
        )

    async def missing_events(
        self,
        room_id: str,
        server: str,
        earliest: Collection[str],
        latest: Collection[str],
        limit: int = 10,
        min_depth: int = 0,
    ) -> ServedEvents:
        """The events between some that another server has, as it may see them; at most 20.

        :raises UnknownRoom: :raises TooManyEventsNamed: :raises BadMinDepth:
        """
        return await self._read(
            "missing events",
            lambda txn: read_missing_events(
                txn, room_id, server, earliest, latest, limit, min_depth
            ),
        )

    # Explanations

    async def explain_state(
        self, event_id: str, key: StateKey, *, before: bool = False
    ) -> StateExplanation:
        """Where an entry of the state after (or before) an event comes from.

        :raises EventNotStored: :raises EventIsOutlier:
        """
        return await self._read(
            "explain state", lambda txn: explain_state(txn, event_id, key, before=before)
        )

    async def explain_visibility(self, event_id: str, viewer: Viewer) -> VisibilityExplanation:
        """Whether a user may see an event, and by which rule.

        :raises EventNotStored: it is not here
        """
        return await self._read(
            "explain visibility", lambda txn: explain_visibility(txn, event_id, viewer)
        )

    async def explain_auth(self, event_id: str) -> AuthExplanation:
        """What authorises an event, and which rule allows or refuses it.

        :raises EventNotStored: it is not here
        """
        return await self._read("explain auth", lambda txn: explain_auth(txn, event_id))

    async def explain_refusal(self, event_id: str) -> RefusalExplanation:
        """Why an event was rejected or soft-failed, back to the first cause.

        :raises EventNotStored: it is not here
        """
        return await self._read("explain a refusal", lambda txn: explain_refusal(txn, event_id))

    def _with_json(
        self, txn: Transaction, state: Mapping[StateKey, str]
    ) -> dict[StateKey, EventCopy]:
        events = read_events(txn, list(state.values()))
        return {key: events[event_id] for key, event_id in state.items()}

    async def _read(self, name: str, work: Callable[[Transaction], T]) -> T:
        return await self.database.run(
            name, work, read_only=True, isolation=Isolation.REPEATABLE_READ
        )
