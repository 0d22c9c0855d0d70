"""Imports into the room store, through its persister."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from synrepl.rooms import Refusal, RoomVersion
from synrepl.services.rooms.importing.sink import ImportedEvent
from synrepl.services.rooms.persister import RoomPersister
from synrepl.storage.database import Database, Transaction
from synrepl.storage.rooms.tables.events import StoredEvent, events_by_id
from synrepl.storage.rooms.tables.heads import forward_extremities
from synrepl.storage.rooms.tables.incoming import EventOutcome, IncomingEvent, PersistedEvent
from synrepl.storage.rooms.tables.numbers import find_room

#: Stored with events that the source soft-failed.
SOFT_FAILED_AT_SOURCE = Refusal(
    "soft-failed-at-source", "the server that it was imported from soft-failed it"
)

#: IDs of missing events that a reason lists.
_LISTED = 5


class PersistingSink:
    """Implements :class:`.RoomSink` over the room store.

    Events of a copy go into the stream ``events``, in the order in which they arrived at the source, also
    those that it backfilled. So they have the source's order. Events that the source backfills while it is
    followed go into ``backfill``.
    """

    def __init__(self, persister: RoomPersister, database: Database) -> None:
        self._persister = persister
        self._database = database

    async def store(
        self, room_id: str, version: RoomVersion, events: Sequence[ImportedEvent]
    ) -> Mapping[str, str]:
        """Persist events; the persister judges them once more."""
        reasons: dict[str, str] = {}
        incoming = [
            await self._incoming(each, events[:place], reasons) for place, each in enumerate(events)
        ]
        batch = await self._persister.persist(room_id, version.name, incoming)
        known = [each.event_id for each in batch.events if each.outcome is EventOutcome.KNOWN]
        stored = await self._stored_events(known) if known else {}
        for imported, became in zip(events, batch.events, strict=True):
            row = stored.get(became.event_id)
            reason = _difference(imported, became) if row is None else _differs(imported, row)
            if reason is not None:
                reasons[became.event_id] = reason
        return reasons

    async def stored(self, event_ids: Collection[str]) -> Collection[str]:
        """Those of the events that are no outliers."""

        found = await self._stored_events(event_ids)
        return [each for each, row in found.items() if not row.is_outlier]

    async def forward_extremities(self, room_id: str) -> Sequence[str]:
        """Those of the stored room."""

        def work(txn: Transaction) -> list[str]:
            room = find_room(txn, room_id)
            return [] if room is None else sorted(forward_extremities(txn, room.room_no).values())

        return await self._database.run("forward extremities", work, read_only=True)

    async def _incoming(
        self, imported: ImportedEvent, before: Sequence[ImportedEvent], reasons: dict[str, str]
    ) -> IncomingEvent:
        """An event for the persister.

        Of a given state, entries are left out whose events are not imported.
        """
        state = imported.state_before
        if state is not None:
            here = {each.event.event_id for each in before}
            wanted = [each for each in state.values() if each not in here]
            here.update(await self._stored_events(wanted))
            missing = sorted({each for each in wanted if each not in here})
            if missing:
                state = {key: each for key, each in state.items() if each in here}
                some = ", ".join(missing[:_LISTED])
                reasons[imported.event.event_id] = (
                    f"with {len(missing)} entries less in the state before it: {some}"
                )
        return IncomingEvent(
            imported.event,
            live=False,
            backfilled=imported.backfilled,
            outlier=imported.outlier,
            state_before=state,
            soft_failure=SOFT_FAILED_AT_SOURCE if imported.soft_failed else None,
        )

    async def _stored_events(self, event_ids: Collection[str]) -> Mapping[str, StoredEvent]:
        return await self._database.run(
            "stored events", lambda txn: events_by_id(txn, event_ids), read_only=True
        )


def _differs(imported: ImportedEvent, stored: StoredEvent) -> str | None:
    """How the verdict on an event that was stored before differs; None if it does not.

    The verdict on an outlier is another than that on the same event with its state.
    """
    if stored.is_outlier != imported.outlier or stored.is_rejected == imported.rejected:
        return None
    verdict = "rejected" if stored.is_rejected else "accepted"
    return f"{verdict}, when it was stored before"


def _difference(imported: ImportedEvent, became: PersistedEvent) -> str | None:
    """Why an event was not stored as it was judged; None if it was."""
    outcome = became.outcome
    if outcome is EventOutcome.REFUSED:
        return str(became.error)
    if outcome is EventOutcome.WAITING:
        return f"waits for {', '.join(became.missing[:_LISTED])}"
    if (outcome is EventOutcome.REJECTED) != imported.rejected:
        return outcome.value if became.refusal is None else f"{outcome}: {became.refusal.sentence}"
    return None
