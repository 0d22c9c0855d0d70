"""One round of filling a gap: the auth events that are missing, the events between, or the state before an event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from synrepl.core.errors import ProtocolError, Refused, Unavailable
from synrepl.rooms import Event, StateMap, server_of
from synrepl.services.federation.inbound.fetching import EventFetcher, RoomRef
from synrepl.services.rooms.persister import RoomPersister
from synrepl.storage.federation.gaps import RoomGap, WaitingForOthers
from synrepl.storage.rooms.tables.incoming import EventOutcome, IncomingEvent, PersistedBatch

#: Events in an answer to ``get_missing_events``, and events that are named as the latest.
EVENTS_BETWEEN, MAX_LATEST = 20, 20

#: Servers that are asked for the same.
MAX_ASKED = 4

#: Events whose auth chain or state is fetched in one round.
EVENTS_A_ROUND = 3

#: Errors of a server, after which the next one is asked.
SERVER_ERRORS = (Unavailable, ProtocolError, Refused)


class GapRound:
    """One round of filling the gap of a room.

    :param servers: to be asked, the likeliest first
    :ivar outcomes: number of fetched events by outcome, and of failures by the name of the error
    :ivar reason: of the last failure
    """

    def __init__(
        self,
        fetcher: EventFetcher,
        persister: RoomPersister,
        gap: RoomGap,
        servers: Sequence[str],
    ) -> None:
        self._fetcher = fetcher
        self._persister = persister
        self._gap = gap
        self._servers = servers[:MAX_ASKED]
        self._room = RoomRef(gap.room_no, gap.room_id, gap.version)
        self.outcomes: Counter[str] = Counter()
        self.reason = "the room has no other server"

    async def run(self, *, is_early: bool) -> bool:
        """Fetch something; returns whether anything has come.

        :param is_early: events between may be all that is missing
        :raises SynreplError: the errors of :meth:`.RoomPersister.persist`
        """
        unauthorised = [each for each in self._gap.waiting if each.auth_events]
        if unauthorised and await self._fetch_auth_events(unauthorised[:EVENTS_A_ROUND]):
            return True
        unconnected = [each for each in self._gap.waiting if each.prev_events]
        if not unconnected:
            return False
        if is_early and await self._fetch_between(unconnected):
            return True
        has_come_forward = False
        for each in unconnected[:EVENTS_A_ROUND]:
            has_come_forward |= await self._fetch_state(each)
        return has_come_forward

    # -- auth events ------------------------------------------------------------------------

    async def _fetch_auth_events(self, waiting: Sequence[WaitingForOthers]) -> bool:
        has_come_forward = False
        for each in waiting:
            for server in self._servers_for(each.event):
                try:
                    await self._fetcher.store_auth_chain(self._room, server, each.event)
                except SERVER_ERRORS as error:
                    self._note_failure(error)
                    continue
                left = await self._fetcher.unknown(each.auth_events)
                if len(left) < len(each.auth_events):
                    self.outcomes["auth chain"] += 1
                    has_come_forward = True
                    break
                self._note(f"{server} has not all auth events of {each.event.event_id}")
        return has_come_forward

    # -- events between ---------------------------------------------------------------------

    async def _fetch_between(self, waiting: Sequence[WaitingForOthers]) -> bool:
        gap = self._gap
        latest = [each.event.event_id for each in waiting[:MAX_LATEST]]
        known = {each.event.event_id for each in gap.waiting}
        for server in self._servers:
            try:
                events = await self._fetcher.missing_events(
                    self._room, server, gap.extremities, latest, EVENTS_BETWEEN, gap.min_depth
                )
            except SERVER_ERRORS as error:
                self._note_failure(error)
                continue
            new = [each for each in events[:EVENTS_BETWEEN] if each.event_id not in known]
            if not new:
                self._note(f"{server} has no event between")
                continue
            first = waiting[0]
            done = await self._persist(
                [IncomingEvent(each, first.live, first.backfilled) for each in new]
            )
            if done.judged or any(e.outcome is EventOutcome.WAITING for e in done.events):
                return True
        return False

    # -- the state before an event ----------------------------------------------------------

    async def _fetch_state(self, waiting: WaitingForOthers) -> bool:
        """Judge an event by the state before it that a server reports.

        Other servers than that of its sender are believed at once only where their state has the auth events that the event
        cites. Otherwise one that lies could have events of others rejected.
        """
        event, found = waiting.event, None
        for server in self._servers_for(event):
            try:
                state = await self._fetcher.state_before(self._room, server, event)
            except SERVER_ERRORS as error:
                self._note_failure(error)
                continue
            found = state if found is None else found
            if server == server_of(event.sender) or await self._agrees(event, state):
                found = state
                break
            self._note(f"the state that {server} reports disagrees with {event.event_id}")
        return found is not None and await self._judge(waiting, found)

    async def _agrees(self, event: Event, state: StateMap) -> bool:
        """Whether a state has the very events by which an event says that it is authorised."""
        keys = await self._fetcher.keys(self._room, event.auth_event_ids)
        return all(state.get((each.type, each.state_key)) == each.event_id for each in keys)

    async def _judge(self, waiting: WaitingForOthers, state: StateMap) -> bool:
        incoming = IncomingEvent(
            waiting.event,
            waiting.live,
            waiting.backfilled,
            state_before=state,
            checked_by_room=True,
        )
        done = await self._persist([incoming])
        (own,) = done.events
        if own.error is not None:
            self._note(str(own.error))
        return own.outcome not in (EventOutcome.REFUSED, EventOutcome.WAITING)

    async def _persist(self, events: Sequence[IncomingEvent]) -> PersistedBatch:
        done = await self._persister.persist(self._room.room_id, self._room.version.name, events)
        self.outcomes.update(each.outcome.value for each in done.events)
        return done

    def _servers_for(self, event: Event) -> list[str]:
        """The servers to ask about an event: first that of its sender, if it is among them."""
        own = server_of(event.sender)
        return sorted(self._servers, key=lambda each: each != own)

    def _note_failure(self, error: Exception) -> None:
        self.outcomes[type(error).__name__] += 1
        self._note(str(error))

    def _note(self, reason: str) -> None:
        self.reason = reason
