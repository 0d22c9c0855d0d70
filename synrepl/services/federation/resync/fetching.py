"""Fetches the events of a listed state from other servers, and checks them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from synrepl.core.clock import Scheduler
from synrepl.core.concurrent import map_concurrently
from synrepl.core.errors import InputError
from synrepl.federation.errors import RequestRefusedByServer
from synrepl.rooms import Event, room_version
from synrepl.services.federation.answered_parts import causes_first
from synrepl.services.federation.resync.interfaces import AsksForStates, VerifiesEvents
from synrepl.services.federation.resync.servers import ASKING_ERRORS, RoomServers, code_of
from synrepl.services.federation.storing_outliers import FetchedOutliers
from synrepl.storage.database import Database
from synrepl.storage.rooms.partial.jobs import ResyncJob
from synrepl.storage.rooms.partial.listed_states import (
    count_missing,
    missing_events_of_list,
)
from synrepl.storage.rooms.partial.steps import keep_events
from synrepl.storage.rooms.tables.incoming import check_storable

#: From this part of the events, and from this number of them on, the whole state is requested instead of single events.
WHOLE_FROM_PART, WHOLE_FROM = 0.1, 20

#: Events that are requested one by one at the same time, and before it is looked whether the server helps.
CONCURRENT, PAGE = 10, 100

#: Events that are verified together.
VERIFIED = 1_000


class ListFetcher:
    """Fetches what is missing of the list of one room.

    :param outliers: stores what is fetched
    """

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        client: AsksForStates,
        verifier: VerifiesEvents,
        servers: RoomServers,
        outliers: FetchedOutliers,
        job: ResyncJob,
    ) -> None:
        self._scheduler = scheduler
        self._database = database
        self._client = client
        self._verifier = verifier
        self._servers = servers
        self._outliers = outliers
        self._job = job
        self._version = room_version(job.version)

    async def missing(self) -> int:
        """Number of events that are missing."""
        return await self._database.run(
            "count missing events",
            lambda txn: count_missing(txn, self._job.room_no),
            read_only=True,
        )

    async def fetch_from(
        self, server: str, event_id: str, listed: int, *, one_by_one: bool
    ) -> bool:
        """Fetch what is missing from one server; what has arrived is kept whatever comes then.

        :param event_id: the event before which the state is
        :param listed: number of listed events
        :param one_by_one: do not request the whole state, however many events are missing
        :returns: whether the server answered, though perhaps not with what is missing
        """
        missing = await self.missing()
        if not one_by_one and missing > max(WHOLE_FROM, listed * WHOLE_FROM_PART):
            room_id = self._job.room_id
            found = await self._servers.ask(
                server, lambda: self._client.state(server, room_id, event_id)
            )
            if found is None:
                return False
            with found as answer:
                for part in causes_first(answer, VERIFIED):
                    await self._keep(part.raws, server)
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
        """Store or keep those of some events that are missing and pass checks 1 to 3; returns their number."""
        # Verifying signatures takes longer than anything else, so it is only done for what is missing.
        results = await self._verifier.verify(
            raws, self._version, origin=server, choose=self._missing_among
        )
        events = {
            each.event.event_id: each.event
            for each in results
            if each.event is not None and self._fits(each.event)
        }
        if not events:
            return 0
        waiting = await self._outliers.store_arrived(events.values())
        stored = len(events) - len(waiting)
        return await self._database.run(
            "keep fetched events", lambda txn: keep_events(txn, self._job, waiting, stored)
        )

    async def _missing_among(self, event_ids: Collection[str]) -> Collection[str]:
        named = [each for each in event_ids if "\0" not in each]
        if not named:
            return ()
        missing = await self._database.run(
            "missing events",
            lambda txn: missing_events_of_list(txn, self._job.room_no, len(named), named),
            read_only=True,
        )
        return set(missing)

    def _fits(self, event: Event) -> bool:
        if event.room_id != self._job.room_id:
            return False
        try:
            check_storable(event)
        except InputError:
            return False
        return True
