"""A compaction of one room, batch by batch."""

from __future__ import annotations

from functools import partial

from synrepl.services.rooms.maintenance.room_job import MAX_BATCH_ROWS, RoomJob
from synrepl.storage.rooms.maintenance import compact
from synrepl.storage.rooms.maintenance.collect import rebase_group

#: Groups that are planned together; each may be a whole state in memory for a moment.
PLANNED_TOGETHER = 50


class CompactionJob(RoomJob):
    """Compacts one room."""

    async def compact(self) -> None:
        """Merge, splice and rewrite groups, and collect what is not needed any more."""
        await self.collect(rebase=False)
        await self._merge()
        await self._splice()
        await self._rewrite()
        await self.collect(rebase=False)

    async def _merge(self) -> None:
        room_no = self.room.room_no
        last: object = None
        while True:
            mark = await self.mark()
            merged = await self.run(
                "find equal state groups",
                partial(compact.plan_merges, room_no=room_no, limit=PLANNED_TOGETHER),
            )
            events = await self.run(
                "find events",
                partial(
                    compact.referring_events, room_no=room_no, merged=merged, limit=MAX_BATCH_ROWS
                ),
            )
            # Groups that cannot go, because of the places of those on top of them, are found again.
            if not merged or (merged == last and not events):
                return
            last = merged
            for at in range(0, max(1, len(events)), self.locks.size("events")):
                part = events[at : at + self.locks.size("events")]
                batch = await self.run(
                    "merge state groups",
                    partial(compact.merge_groups, mark=mark, merged=merged, events=part),
                )
                mark = self.done("events", 0, batch)
                self.tell("events of merged state groups", at + len(part), len(events))
            await self.collect(rebase=False)

    async def _splice(self) -> None:
        room_no = self.room.room_no
        after: int | None = 0
        while after is not None:
            mark = await self.mark()
            plan = await self.run(
                "find steps between state groups",
                partial(compact.plan_splices, room_no=room_no, after=after, limit=PLANNED_TOGETHER),
            )
            for each in plan.rebased:
                batch = await self.run(
                    "rebase state groups", partial(rebase_group, mark=mark, rebased=each)
                )
                mark = self.done("rebase", 0, batch)
                self.rebased += 1
            after = plan.next_group
            self.tell("steps between state groups", self.rebased, None)

    async def _rewrite(self) -> None:
        room_no = self.room.room_no
        after: int | None = 0
        while after is not None:
            mark = await self.mark()
            plan = await self.run(
                "find large state groups",
                partial(
                    compact.plan_rewrites, room_no=room_no, after=after, limit=PLANNED_TOGETHER
                ),
            )
            after = plan.next_group
            for each, moved in zip(plan.rebased, plan.moved, strict=True):
                batch = await self.run(
                    "rewrite state groups",
                    partial(compact.rewrite_group, mark=mark, rebased=each, moved=moved),
                )
                mark = self.done("rebase", 0, batch)
                self.rebased += batch.is_complete
                if not batch.is_complete:  # what follows was planned on top of it
                    after = each.group_no
                    break
            self.tell("large state groups", self.rebased, None)
