"""Fetches the events of a listed state, checks them, and stores them as outliers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from synrepl.core.clock import Scheduler
from synrepl.core.concurrent import map_concurrently
from synrepl.core.errors import InputError
from synrepl.federation.errors import RequestRefusedByServer
from synrepl.rooms import Event, UnknownEvents, auth_dependencies, parse_event, room_version
from synrepl.services.federation.resync.interfaces import AsksForStates, VerifiesEvents
from synrepl.services.federation.resync.servers import ASKING_ERRORS, RoomServers, code_of, in_parts
from synrepl.services.rooms.persister import RoomPersister
from synrepl.storage.database import Database
from synrepl.storage.rooms.partial.jobs import ResyncJob
from synrepl.storage.rooms.partial.listed_states import (
    FetchedEvent,
    count_missing,
    fetched_events,
    missing_events_of_list,
)
from synrepl.storage.rooms.partial.steps import events_stored, keep_events
from synrepl.storage.rooms.persisting.limits import EVENT_REFUSALS
from synrepl.storage.rooms.tables.incoming import IncomingEvent, PersistedEvent, check_storable

#: From this part of the events, and from this number of them on, the whole state is requested instead of single events.
WHOLE_FROM_PART, WHOLE_FROM = 0.1, 20

#: Events that are requested one by one at the same time, and before it is looked whether the server helps.
CONCURRENT, PAGE = 10, 100

#: Events that are verified together, and stored in one transaction.
VERIFIED, STORED = 500, 200

#: Auth events that were not on a list, and are fetched all the same.
MAX_UNLISTED = 10_000


class StoredPass(NamedTuple):
    """What came of storing fetched events.

    :ivar fault: why the list they are of cannot be right; None if there is no reason
    :ivar cited: auth events that must be fetched, too
    """

    fault: str | None
    cited: int


class ListFetcher:
    """Fetches and stores what is missing of the list of one room."""

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        persister: RoomPersister,
        client: AsksForStates,
        verifier: VerifiesEvents,
        servers: RoomServers,
        job: ResyncJob,
    ) -> None:
        self._scheduler = scheduler
        self._database = database
        self._persister = persister
        self._client = client
        self._verifier = verifier
        self._servers = servers
        self._job = job
        self._version = room_version(job.version)
        self._unlisted = 0

    async def missing(self) -> int:
        """Number of events that are missing."""
        return await self._database.run(
            "count missing events",
            lambda txn: count_missing(txn, self._job.room_no),
            read_only=True,
        )

    async def fetch_from(self, server: str, event_id: str, listed: int) -> bool:
        """Fetch what is missing from one server; what has arrived is kept whatever comes then.

        :param event_id: the event before which the state is
        :param listed: number of listed events
        :returns: whether the server answered, though perhaps not with what is missing
        """
        missing = await self.missing()
        if missing > max(WHOLE_FROM, listed * WHOLE_FROM_PART):
            room_id = self._job.room_id
            found = await self._servers.ask(
                server, lambda: self._client.state(server, room_id, event_id)
            )
            if found is None:
                return False
            with found as answer:
                for raws in in_parts(_both(answer.state(), answer.auth_chain()), VERIFIED):
                    await self._keep(raws, server)
        return await self._single_events(server)

    async def _single_events(self, server: str) -> bool:
        """Fetch single events as long as the server has some."""
        while True:
            ids = await self._database.run(
                "missing events",
                lambda txn: missing_events_of_list(txn, self._job.room_no, PAGE),
                read_only=True,
            )
            if not ids:
                return True
            outcomes = await map_concurrently(
                self._scheduler, partial(self._event, server), ids, CONCURRENT
            )
            raws = [each for each in outcomes if isinstance(each, bytes)]
            kept = await self._keep(raws, server) if raws else 0
            errors = [each for each in outcomes if isinstance(each, Exception)]
            away = [each for each in errors if not isinstance(each, RequestRefusedByServer)]
            if away:
                await self._servers.failed(server, code_of(away[0]), str(away[0]))  # type: ignore[arg-type]
                return False
            if not kept:
                reason = f"it has not {len(ids)} of the events, such as {ids[0]}, or they are not acceptable"
                await self._servers.failed(server, "incomplete", reason)
                return True

    async def _event(self, server: str, event_id: str) -> bytes | Exception:
        try:
            return await self._client.event(server, event_id)
        except ASKING_ERRORS as error:
            return error

    async def _keep(self, raws: Sequence[bytes], server: str) -> int:
        """Keep those of some events that are missing and pass checks 1 to 3; returns their number."""
        wanted = await self._wanted(raws)
        if not wanted:
            return 0
        results = await self._verifier.verify(wanted, self._version, origin=server)
        events = [
            each.event for each in results if each.event is not None and self._fits(each.event)
        ]
        return await self._database.run(
            "keep fetched events", lambda txn: keep_events(txn, self._job, events)
        )

    async def _wanted(self, raws: Sequence[bytes]) -> list[bytes]:
        """Those of some events that are missing: verifying signatures takes longer than anything else."""
        by_id: dict[str, bytes] = {}
        for raw in raws:
            try:
                by_id[parse_event(raw, self._version).event_id] = raw
            except InputError:
                continue
        named = [each for each in by_id if "\0" not in each]
        missing = await self._database.run(
            "missing events",
            lambda txn: missing_events_of_list(txn, self._job.room_no, len(named), named),
            read_only=True,
        )
        return [by_id[each] for each in missing]

    def _fits(self, event: Event) -> bool:
        if event.room_id != self._job.room_id:
            return False
        try:
            check_storable(event)
        except InputError:
            return False
        return True

    async def store(self) -> StoredPass:
        """Store all that was fetched. An event waits for those that it cites, which mostly come before it."""
        while True:
            after, refused, stored = (-1, ""), list[Event](), 0
            while True:
                page = await self._page(after)
                if not page:
                    break
                after = page[-1].depth, page[-1].event_id
                events = [parse_event(each.raw, self._version) for each in page]
                done = await self._persist(events)
                waiting = [
                    event
                    for event, each in zip(events, done, strict=True)
                    if isinstance(each.error, UnknownEvents)
                ]
                others = [
                    each
                    for each in done
                    if each.error is not None and not isinstance(each.error, UnknownEvents)
                ]
                if others:
                    return StoredPass(
                        f"{others[0].event_id} of it is refused: {others[0].error}", 0
                    )
                stored += len(events) - len(waiting)
                refused += waiting
                await self._forget(events, waiting)
            if not refused:
                return StoredPass(None, 0)
            if not stored:
                return await self._cited_by(refused)

    async def _page(self, after: tuple[int, str]) -> list[FetchedEvent]:
        return await self._database.run(
            "fetched events",
            lambda txn: fetched_events(txn, self._job.room_no, after, STORED),
            read_only=True,
        )

    async def _persist(self, events: Sequence[Event]) -> Sequence[PersistedEvent]:
        incoming = [IncomingEvent(each, outlier=True) for each in events]
        done = await self._persister.persist(self._job.room_id, self._version.name, incoming)
        for each in done.events:
            if each.error is not None and not isinstance(each.error, EVENT_REFUSALS):
                raise each.error
        return done.events

    async def _forget(self, events: Sequence[Event], waiting: Sequence[Event]) -> None:
        left = {each.event_id for each in waiting}
        gone = [each.event_id for each in events if each.event_id not in left]
        if gone:
            await self._database.run(
                "events are stored", lambda txn: events_stored(txn, self._job, gone)
            )

    async def _cited_by(self, refused: Sequence[Event]) -> StoredPass:
        """Add what events cite, and what was not listed, to the list."""
        cited = sorted({each for event in refused for each in auth_dependencies(event)})
        before = await self.missing()
        await self._database.run(
            "auth events are missing", lambda txn: events_stored(txn, self._job, (), cited)
        )
        added = await self.missing() - before
        self._unlisted += added
        if not added or self._unlisted > MAX_UNLISTED:
            return StoredPass(f"{refused[0].event_id} of it cites events that are not to be had", 0)
        return StoredPass(None, added)


def _both(one: Iterator[bytes], other: Iterator[bytes]) -> Iterator[bytes]:
    yield from one
    yield from other
