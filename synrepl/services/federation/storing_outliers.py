"""Stores events that were fetched for a state and its auth chain, as outliers, in bounded batches.

An outlier is judged by its auth events. Most are here when it arrives, and it is stored at once. What comes before an event
that it cites is kept in a table, and stored in the order of depth, in which nearly every event comes after those that it
cites. One that does not is tried again in the next pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from synrepl.rooms import Event, UnknownEvents, auth_dependencies, parse_event, room_version
from synrepl.services.rooms.persister import RoomPersister
from synrepl.storage.database import Database, Transaction
from synrepl.storage.rooms.partial.listed_states import count_missing, fetched_events
from synrepl.storage.rooms.persisting.limits import EVENT_REFUSALS
from synrepl.storage.rooms.tables.incoming import IncomingEvent, PersistedEvent

#: Events that are stored in one transaction.
STORED = 500

#: Auth events that were not on a list, and are needed all the same.
MAX_UNLISTED = 10_000

#: Records in a transaction that events are stored, and that auth events are missing which were not listed.
RecordStored = Callable[[Transaction, Collection[str], Collection[str]], None]


class StoredPass(NamedTuple):
    """What came of storing fetched events.

    :ivar fault: why the list they are of cannot be right; None if there is no reason
    :ivar cited: number of auth events that must be fetched, too
    """

    fault: str | None
    cited: int


class FetchedOutliers:
    """The fetched events of one room.

    :param record: forgets fetched events that are stored now, and adds what they cite to the list
    """

    def __init__(
        self,
        database: Database,
        persister: RoomPersister,
        room_no: int,
        room_id: str,
        version: str,
        record: RecordStored,
    ) -> None:
        self._database = database
        self._persister = persister
        self._room_no = room_no
        self._room_id = room_id
        self._version = room_version(version)
        self._record = record
        self._unlisted = 0

    async def store_arrived(self, events: Collection[Event]) -> list[Event]:
        """Store those of some events whose auth events are here; returns the others, which are to be kept."""
        ordered = sorted(events, key=_by_depth)
        done = await self._persist(ordered) if ordered else ()
        return [event for event, each in zip(ordered, done, strict=True) if each.error is not None]

    async def store(self) -> StoredPass:
        """Store all that was kept."""
        while True:
            after, refused, stored = (-1, ""), list[Event](), 0
            while events := await self._page(after):
                after = _by_depth(events[-1])
                waiting = list[Event]()
                for event, done in zip(events, await self._persist(events), strict=True):
                    if isinstance(done.error, UnknownEvents):
                        waiting.append(event)
                    elif done.error is not None:
                        return StoredPass(f"{done.event_id} of it is refused: {done.error}", 0)
                stored += len(events) - len(waiting)
                refused += waiting
                await self._forget(events, waiting)
            if not refused:
                return StoredPass(None, 0)
            if not stored:
                return await self._cited_by(refused)

    async def _page(self, after: tuple[int, str]) -> list[Event]:
        def read(txn: Transaction) -> list[Event]:
            page = fetched_events(txn, self._room_no, after, STORED)
            return [parse_event(each, self._version) for each in page]

        return await self._database.run("fetched events", read, read_only=True)

    async def _persist(self, events: Sequence[Event]) -> Sequence[PersistedEvent]:
        incoming = [IncomingEvent(each, outlier=True) for each in events]
        done = await self._persister.persist(self._room_id, self._version.name, incoming)
        for each in done.events:
            if each.error is not None and not isinstance(each.error, EVENT_REFUSALS):
                raise each.error
        return done.events

    async def _forget(self, events: Sequence[Event], waiting: Sequence[Event]) -> None:
        left = {each.event_id for each in waiting}
        gone = [each.event_id for each in events if each.event_id not in left]
        if gone:
            await self._database.run("events are stored", lambda txn: self._record(txn, gone, ()))

    async def _cited_by(self, refused: Sequence[Event]) -> StoredPass:
        """Add what events cite, and what was not listed, to the list."""
        cited = sorted({each for event in refused for each in auth_dependencies(event)})

        def work(txn: Transaction) -> int:
            before = count_missing(txn, self._room_no)
            self._record(txn, (), cited)
            return count_missing(txn, self._room_no) - before

        added = await self._database.run("auth events are missing", work)
        self._unlisted += added
        if not added or self._unlisted > MAX_UNLISTED:
            return StoredPass(f"{refused[0].event_id} of it cites events that are not to be had", 0)
        return StoredPass(None, added)


def _by_depth(event: Event) -> tuple[int, str]:
    return event.depth, event.event_id
