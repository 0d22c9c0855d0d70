"""Work on one room in short transactions, and how long each holds the room's lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple, TypeVar

from synrepl.core.errors import StorageError
from synrepl.storage.database import Database, Transaction
from synrepl.storage.rooms.maintenance.collect import (
    BatchDone,
    plan_collection,
    rebase_group,
    remove_groups,
    remove_line,
    retire_lines,
)
from synrepl.storage.rooms.maintenance.marks import RoomMark, mark_room
from synrepl.storage.rooms.tables.numbers import RoomRow

T = TypeVar("T")

#: For how many milliseconds a batch should hold a room's lock; sizes of batches follow from what was measured.
TARGET_MS = 20.0

#: Rows of a first batch, of the smallest and of the largest.
FIRST_BATCH = 100
MIN_BATCH = 20
MAX_BATCH_ROWS = 2_000

#: How often something is planned again because it came into use meanwhile.
MAX_ROUNDS = 1_000


class NeverUnused(StorageError):
    """room {room_id} changed so quickly that what is to be collected of it could not be found in {rounds} attempts; run the command again"""


class MaintenanceProgress(NamedTuple):
    """How far an operation is.

    :ivar phase: what it does now, as a few words
    :ivar done: rows or events that are done, in this phase
    :ivar total: how many there are at most; None if that is not known
    """

    room_id: str
    phase: str
    done: int
    total: int | None


#: Called after each batch.
ProgressListener = Callable[[MaintenanceProgress], object]


class LockTimes:
    """How long a room's lock was held, and the size of the next batch.

    :ivar batches: number of transactions that held it
    :ivar total_ms: for how many milliseconds in all
    :ivar longest_ms: and at most at a time
    """

    def __init__(self) -> None:
        self.batches = 0
        self.total_ms = 0.0
        self.longest_ms = 0.0
        self._sizes: dict[str, int] = {}

    def size(self, phase: str) -> int:
        """The number of rows of the next batch of a phase."""
        return self._sizes.get(phase, FIRST_BATCH)

    def held(self, phase: str, rows: int, held_ms: float) -> None:
        """Record a batch."""
        self.batches += 1
        self.total_ms += held_ms
        self.longest_ms = max(self.longest_ms, held_ms)
        if rows:
            fitting = int(rows * TARGET_MS / max(held_ms, 0.1))
            # It grows slowly: a batch after a quick one may meet what the quick one did not.
            self._sizes[phase] = max(MIN_BATCH, min(fitting, 2 * self.size(phase), MAX_BATCH_ROWS))

    def sentence(self) -> str:
        """All of it, for people."""
        return (
            f"The room was locked {self.batches:,} times, for {self.total_ms:,.0f} ms in all and"
            f" {self.longest_ms:,.1f} ms at most."
        )

    def to_json(self) -> dict[str, object]:
        """``{"batches", "total_ms", "longest_ms"}``."""
        return {
            "batches": self.batches,
            "total_ms": round(self.total_ms, 1),
            "longest_ms": round(self.longest_ms, 1),
        }


class RoomJob:
    """Collects in one room; counts what was done."""

    def __init__(
        self, database: Database, room: RoomRow, progress: ProgressListener | None
    ) -> None:
        self.room = room
        self.locks = LockTimes()
        self.rows = 0
        self.rebased = 0
        self._database = database
        self._progress = progress

    async def run(self, name: str, work: Callable[[Transaction], T]) -> T:
        """Run work in a transaction."""
        return await self._database.run(f"{name} of {self.room.room_id}", work)

    async def mark(self) -> RoomMark:
        """Take a mark, before something is found out."""
        taken = await self.run("mark", lambda txn: mark_room(txn, self.room.room_no))
        self._held("mark", 0, taken.since)
        return taken.mark

    def done(self, phase: str, size: int, batch: BatchDone) -> RoomMark:
        """Record a batch; returns the mark to go on with."""
        self._held(phase, size, batch.since)
        self.rows += batch.rows
        return batch.mark

    def _held(self, phase: str, size: int, since: float) -> None:
        # COMMIT has been answered: until then, nobody else gets the lock.
        self.locks.held(phase, size, (perf_counter() - since) * 1000)

    def tell(self, phase: str, done: int, total: int | None) -> None:
        """Report how far it is."""
        if self._progress is not None:
            self._progress(MaintenanceProgress(self.room.room_id, phase, done, total))

    async def collect(self, *, rebase: bool) -> None:
        """Remove groups and lines that nothing refers to."""
        room_no = self.room.room_no
        near: list[int] = []
        for _ in range(MAX_ROUNDS):
            mark = await self.mark()
            plan = await self.run(
                "find unused state groups",
                partial(plan_collection, room_no=room_no, rebase=rebase, near=near),
            )
            if plan.is_empty:
                return
            for each in plan.rebased:
                mark = self.done(
                    "rebase",
                    0,
                    await self.run(
                        "rebase state groups",
                        partial(rebase_group, mark=mark, rebased=each),
                    ),
                )
                self.rebased += 1
            near = [*near, *[each.group_no for each in plan.rebased]][-3:]
            if plan.lines:
                retired = await self.run(
                    "retire state lines", partial(retire_lines, mark=mark, lines=plan.lines)
                )
                mark = self.done("lines", 0, retired)
                if not retired.is_complete:
                    continue
            mark = await self._remove_groups(mark, plan.groups)
            await self._remove_lines(mark, plan.lines)
        raise NeverUnused(room_id=self.room.room_id, rounds=MAX_ROUNDS)

    async def _remove_lines(self, mark: RoomMark, lines: Sequence[int]) -> None:
        for line_no in lines:
            while True:
                size = self.locks.size("lines")
                batch = await self.run(
                    "remove state lines",
                    partial(remove_line, mark=mark, line_no=line_no, limit=size),
                )
                mark = self.done("lines", batch.rows, batch)
                if batch.rows < size:
                    break

    async def _remove_groups(self, mark: RoomMark, groups: Sequence[int]) -> RoomMark:
        at = 0
        while at < len(groups):
            part = groups[at : at + self.locks.size("groups")]
            batch = await self.run(
                "remove state groups",
                partial(remove_groups, mark=mark, groups=part),
            )
            mark = self.done("groups", len(part), batch)
            if not batch.is_complete:
                break
            at += len(part)
            self.tell("state groups", at, len(groups))
        return mark
