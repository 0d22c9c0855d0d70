"""A purge of one room, batch by batch."""

from __future__ import annotations

from functools import partial

from synrepl.services.rooms.maintenance.room_job import (
    MAX_BATCH_ROWS,
    MAX_ROUNDS,
    NeverUnused,
    ProgressListener,
    RoomJob,
)
from synrepl.services.rooms.maintenance.unneeded_search import UnneededSearch
from synrepl.storage.database import Database
from synrepl.storage.rooms.maintenance import purge, purge_rest
from synrepl.storage.rooms.maintenance.purge_point import PurgePoint
from synrepl.storage.rooms.tables.numbers import RoomRow

#: Events that are found at once.
FOUND_EVENTS = 20_000


class PurgeJob(RoomJob):
    """Purges one room; counts what was done."""

    def __init__(
        self,
        database: Database,
        room: RoomRow,
        point: PurgePoint,
        progress: ProgressListener | None,
    ) -> None:
        super().__init__(database, room, progress)
        self.events = 0
        self.outliers = 0
        self._point = point
        self._search = UnneededSearch(self.run, room)

    async def cut(self, total: int) -> None:
        """Cut the edges across the point."""
        room_no = self.room.room_no
        done, first = 0, True
        while True:
            size = self.locks.size("edges")
            mark = await self.mark()
            edges = await self.run(
                "find edges",
                partial(purge.edges_to_cut, room_no=room_no, point=self._point, limit=size),
            )
            if not edges and not first:
                return
            self.done(
                "edges",
                len(edges),
                await self.run(
                    "cut edges",
                    partial(
                        purge.cut_edges,
                        mark=mark,
                        edges=edges,
                        point=self._point,
                        new_epoch=first,
                    ),
                ),
            )
            first = False
            done += len(edges)
            self.tell("edges", done, total)

    async def remove_events(self, total: int) -> None:
        """Remove the events before the point."""
        room_no = self.room.room_no
        mark = await self.mark()
        cited = set(
            await self.run("find cited events", lambda txn: purge.cited_messages(txn, room_no))
        )
        while True:
            events = await self.run(
                "find events",
                partial(
                    purge.events_to_purge, room_no=room_no, point=self._point, limit=FOUND_EVENTS
                ),
            )
            if not events:
                return
            at = 0
            while at < len(events):
                part = events[at : at + self.locks.size("events")]
                went = await self.run(
                    "purge events",
                    partial(
                        purge.purge_events,
                        mark=mark,
                        point=self._point,
                        events=part,
                        cited=cited.intersection(each.event_no for each in part),
                    ),
                )
                mark = self.done("events", len(part), went.done)
                at += len(part)
                self.events += went.removed
                self.outliers += went.kept
                self.tell("events", self.events + self.outliers, total)

    async def trim_lines(self) -> None:
        """Remove versions that are nobody's entries any more. This takes no lock."""
        room_no = self.room.room_no
        for line_no in await self.run("find lines", lambda txn: purge_rest.lines_of(txn, room_no)):
            slot: int | None = 0
            while slot is not None:
                trimmed = await self.run(
                    "trim lines",
                    partial(
                        purge_rest.trim_line,
                        room_no=room_no,
                        line_no=line_no,
                        slot=slot,
                        limit=MAX_BATCH_ROWS,
                    ),
                )
                self.rows += trimmed.rows
                slot = trimmed.slot

    async def remove_outliers(self) -> int:
        """Remove outliers that nothing needs; returns how many are left of them: 0."""
        below: int | None = None
        removed = 0
        for _ in range(MAX_ROUNDS):
            mark = await self.mark()
            found = await self._search.outliers(below)
            numbers = sorted(found.numbers, reverse=True)
            at = 0
            while at < len(numbers):
                part = numbers[at : at + self.locks.size("outliers")]
                batch = await self.run(
                    "remove outliers",
                    partial(
                        purge_rest.remove_outliers,
                        mark=mark,
                        numbers=part,
                        unneeded=found.numbers,
                        waiting_no=found.waiting_no,
                    ),
                )
                mark = self.done("outliers", len(part), batch)
                if not batch.is_complete:
                    break
                at += len(part)
                removed += batch.rows // 2
                self.events += batch.rows // 2
                self.outliers -= batch.rows // 2
                self.tell("outliers", at, len(numbers))
            if at < len(numbers):
                continue
            # From the start again, until there is nothing to be found: what went may have been what others needed.
            below = found.next_below
            if below is None:
                if not removed:
                    return len(numbers)
                removed = 0
        raise NeverUnused(room_id=self.room.room_id, rounds=MAX_ROUNDS)

    async def remove_keys(self) -> int:
        """Remove state keys that nothing uses; returns how many are left of them: 0."""
        for _ in range(MAX_ROUNDS):
            mark = await self.mark()
            slots = await self._search.keys()
            if not slots:
                return 0
            for at in range(0, len(slots), MAX_BATCH_ROWS):
                batch = await self.run(
                    "remove keys",
                    partial(
                        purge_rest.remove_keys, mark=mark, slots=slots[at : at + MAX_BATCH_ROWS]
                    ),
                )
                mark = self.done("keys", 0, batch)
        raise NeverUnused(room_id=self.room.room_id, rounds=MAX_ROUNDS)
