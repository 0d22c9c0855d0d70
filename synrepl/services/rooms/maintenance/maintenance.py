"""Maintenance of stored rooms: purge, removal, erasure and collection, in short transactions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from synrepl.services.rooms.maintenance.compaction_job import CompactionJob
from synrepl.services.rooms.maintenance.purge_job import PurgeJob
from synrepl.services.rooms.maintenance.room_job import (
    FIRST_BATCH,
    MAX_BATCH_ROWS,
    LockTimes,
    MaintenanceProgress,
    ProgressListener,
    RoomJob,
)
from synrepl.storage.database import Database, Transaction
from synrepl.storage.erased import erased_subjects
from synrepl.storage.rooms.maintenance import erase, forget, purge, purge_rest
from synrepl.storage.rooms.maintenance.collect import count_uncollected
from synrepl.storage.rooms.maintenance.compact import GroupTotals, group_totals
from synrepl.storage.rooms.maintenance.index_check import (
    check_index,
    checked_indexes,
    install_amcheck,
)
from synrepl.storage.rooms.maintenance.line_rebuild import RebuiltLines, rebuild_room
from synrepl.storage.rooms.maintenance.purge_point import (
    PurgePoint,
    purge_point_at,
    with_staying,
)
from synrepl.storage.rooms.tables.numbers import RoomRow, require_room

T = TypeVar("T")

#: Events that are looked at for one user at once.
SCANNED_EVENTS = 20_000


class PurgeReport(NamedTuple):
    """What a purge did.

    :ivar plan: what it was going to remove at most
    :ivar events: events that went, without those that stay as outliers
    :ivar outliers: events that stay because states or auth chains have them
    :ivar rows: rows that went
    :ivar leftovers: what is left of what should have gone; all 0, unless it came meanwhile
    """

    room_id: str
    plan: purge.PurgePlan
    events: int
    outliers: int
    rows: int
    leftovers: Mapping[str, int]
    locks: LockTimes


class CollectionReport(NamedTuple):
    """What a collection did.

    :ivar rebased: groups that are stored in another way now
    :ivar rows: rows of groups and lines that went
    :ivar leftovers: groups and lines that nothing refers to now
    """

    room_id: str
    rebased: int
    rows: int
    leftovers: int
    locks: LockTimes


class RoomCompactionReport(NamedTuple):
    """What a compaction did.

    :ivar before: the room's state groups before
    :ivar after: and after, with those that were made meanwhile
    """

    room_id: str
    before: GroupTotals
    after: GroupTotals
    locks: LockTimes


class RoomMaintenance:
    """Purges, removes, erases and collects, as other processes go on.

    What is to go is found out without the room's lock, and removed under it in batches of a few milliseconds.
    Whatever ends an operation, the room is whole, and the same call goes on with it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def _run(self, name: str, work: Callable[[Transaction], T]) -> T:
        return await self._database.run(name, work)

    async def room(self, room_id: str) -> RoomRow:
        """A room by its ID.

        :raises UnknownRoom: it is not here
        """
        return await self._run("find a room", lambda txn: require_room(txn, room_id))

    async def purge_point(self, room_id: str, event_id: str) -> PurgePoint:
        """The point at an event.

        :raises UnknownRoom: :raises NoPurgePoint: there is no such room, or no such event in it
        """
        room = await self.room(room_id)
        return await self._run("find an event", lambda txn: purge_point_at(txn, room, event_id))

    async def plan_purge(self, room_id: str, point: PurgePoint) -> purge.PurgePlan:
        """What a purge would remove at most.

        :raises UnknownRoom: :raises CannotPurge: the room is not here, has partial state, or no event
        """
        room = await self.room(room_id)
        return await self._plan_purge(room, await self._with_staying(room, point))

    async def _with_staying(self, room: RoomRow, point: PurgePoint) -> PurgePoint:
        return await self._run(
            f"find what stays of {room.room_id}",
            lambda txn: with_staying(txn, room.room_no, point),
        )

    async def _plan_purge(self, room: RoomRow, point: PurgePoint) -> purge.PurgePlan:
        return await self._run(
            f"plan a purge of {room.room_id}", lambda txn: purge.plan_purge(txn, room, point)
        )

    async def purge(
        self,
        room_id: str,
        point: PurgePoint,
        *,
        index_check: bool = True,
        progress: ProgressListener | None = None,
    ) -> PurgeReport:
        """Purge a room's history before a point.

        :param index_check: whether indexes are checked before state groups are removed
        :raises UnknownRoom: :raises CannotPurge: the room is not here, has partial state, or no event
        :raises IndexesNotChecked: :raises IndexDamaged: see :mod:`~.index_check`
        :raises ReworkedMeanwhile: other maintenance got in between
        :raises CorruptState: a group is damaged; the other groups are left as they are
        """
        room = await self.room(room_id)
        point = await self._with_staying(room, point)
        plan = await self._plan_purge(room, point)
        if index_check:
            await self.check_indexes()
        job = PurgeJob(self._database, room, point, progress)
        if plan.events:
            await job.cut(plan.edges)
            await job.remove_events(plan.events)
        await job.collect(rebase=True)
        await job.trim_lines()
        unneeded = {"outliers": await job.remove_outliers(), "state keys": await job.remove_keys()}
        room_no = job.room.room_no
        leftovers = await self._run(
            "prove a purge", lambda txn: purge_rest.purge_leftovers(txn, room_no, point)
        )
        leftovers |= unneeded
        return PurgeReport(room_id, plan, job.events, job.outliers, job.rows, leftovers, job.locks)

    async def collect(
        self,
        room_id: str,
        *,
        index_check: bool = True,
        rebase: bool = False,
        progress: ProgressListener | None = None,
    ) -> CollectionReport:
        """Remove the state groups and lines of a room that nothing refers to.

        :param rebase: whether those go, too, that only other groups are deltas to
        :raises UnknownRoom: the room is not here
        :raises IndexesNotChecked: :raises IndexDamaged: see :mod:`~.index_check`
        :raises ReworkedMeanwhile: other maintenance got in between
        :raises CorruptState: a group is damaged; then nothing is removed
        """
        room = await self.room(room_id)
        if index_check:
            await self.check_indexes()
        job = RoomJob(self._database, room, progress)
        await job.collect(rebase=rebase)
        left = await self._run(
            "prove a collection", lambda txn: count_uncollected(txn, room.room_no)
        )
        return CollectionReport(room_id, job.rebased, job.rows, left, job.locks)

    async def compact(
        self, room_id: str, *, index_check: bool = True, progress: ProgressListener | None = None
    ) -> RoomCompactionReport:
        """Store the states of a room in fewer rows and fewer entries.

        :raises UnknownRoom: the room is not here
        :raises IndexesNotChecked: :raises IndexDamaged: see :mod:`~.index_check`
        :raises ReworkedMeanwhile: other maintenance got in between
        :raises CorruptState: a group is damaged; then nothing is changed
        """
        room = await self.room(room_id)
        if index_check:
            await self.check_indexes()
        totals = partial(group_totals, room_no=room.room_no)
        before = await self._run("measure state groups", totals)
        job = CompactionJob(self._database, room, progress)
        await job.compact()
        after = await self._run("measure state groups", totals)
        return RoomCompactionReport(room_id, before, after, job.locks)

    async def rebuild_lines(self, room_id: str) -> RebuiltLines:
        """Build the state lines of a room again from its state groups, and the places of its events.

        Both are derived. One transaction does it, in which nobody persists to the room.

        :raises UnknownRoom: the room is not here
        :raises UnknownStateGroup: :raises BrokenChain: a state group is damaged; then nothing is changed
        :raises NumberWithoutRow: a state key or an event of a state group is not here; then nothing is changed
        """
        room_no = (await self.room(room_id)).room_no
        return await self._run(
            f"rebuild state lines of {room_id}", partial(rebuild_room, room_no=room_no)
        )

    async def check_indexes(self) -> Sequence[str]:
        """Check the indexes that lead to references to state groups; returns their names.

        :raises IndexesNotChecked: the server has no amcheck, or the role may not install it
        :raises IndexDamaged: an index does not fit its table
        """
        await self._run("install amcheck", install_amcheck)
        indexes = await self._run("find indexes", checked_indexes)
        for index in indexes:
            await self._run(f"check {index}", partial(check_index, index=index))
        return indexes

    async def forget(
        self,
        room_id: str,
        server_name: str,
        *,
        force: bool = False,
        progress: ProgressListener | None = None,
    ) -> Mapping[str, int]:
        """Remove a room with all its rows; returns what is left by table: all 0.

        :param server_name: whose users must not be in it, unless ``force`` is set
        :raises UnknownRoom: :raises LocalMembers: the room is not here, or users of the server are in it
        """
        found = await self._run(
            f"forget {room_id}",
            lambda txn: forget.rename_room(txn, room_id, server_name, force=force),
        )
        left: dict[str, int] = {}
        for room_no in found.rooms:
            await self._remove_room(room_id, room_no, progress)
            rest = await self._run(
                f"forget {room_id}", partial(forget.end_removal, room_no=room_no)
            )
            left = {table: left.get(table, 0) + count for table, count in rest.items()}
        return left

    async def _remove_room(
        self, room_id: str, room_no: int, progress: ProgressListener | None
    ) -> None:
        removals: list[tuple[str, Callable[[Transaction], int]]] = [
            ("_room_events", lambda txn: forget.remove_events(txn, room_no, MAX_BATCH_ROWS)),
            ("_state_line", lambda txn: forget.remove_versions(txn, room_no, MAX_BATCH_ROWS)),
        ]
        for table in forget.ROOM_TABLES:
            rows_of = partial(
                forget.remove_rows, room_no=room_no, table=table, limit=MAX_BATCH_ROWS
            )
            removals.append((table, rows_of))
        for table, remove in removals:
            done = 0
            while rows := await self._run(f"remove rows of {table}", remove):
                done += rows
                if progress is not None:
                    progress(MaintenanceProgress(room_id, f"rows of {table}", done, None))

    async def users_to_erase(self) -> Sequence[str]:
        """The users among the subjects that were given to ``synrepl.erase()``."""
        subjects = await self._run("find subjects", erased_subjects)
        return sorted(each for each in subjects if erase.is_erasable(each))

    async def record_erased(self, users: Sequence[str]) -> None:
        """Record that users were erased: from then on, others get the redacted form of what they sent.

        :raises NotAUser: one is no user ID; then nobody is recorded
        """

        def record(txn: Transaction) -> None:
            for user in users:
                erase.record_erased(txn, user)

        await self._run("record erased users", record)

    async def erase_user(self, user_id: str, progress: ProgressListener | None = None) -> int:
        """Replace the JSON of all events of a user by their redacted form; returns the number of events.

        Others get the redacted form from the first moment on. Events that are in redacted form already are left
        as they are, so it can be called again at any time.

        :raises NotAUser: it is no user ID
        :raises CorruptEvent: an event of the user is damaged
        """
        await self.record_erased([user_id])
        count, after = 0, 0
        while True:
            found = await self._run(
                "find events of a user",
                partial(erase.sent_events, user_id=user_id, after=after, scan=SCANNED_EVENTS),
            )
            for room_no, numbers in found.by_room.items():
                for at in range(0, len(numbers), FIRST_BATCH):
                    part = numbers[at : at + FIRST_BATCH]
                    count += await self._run(
                        "erase events",
                        partial(erase.erase_events, room_no=room_no, numbers=part),
                    )
                    if progress is not None:
                        progress(MaintenanceProgress("", "erased events", count, None))
            if found.scanned_to is None:
                break
            after = found.scanned_to
        await self._drop_waiting(user_id)
        return count

    async def _drop_waiting(self, user_id: str) -> None:
        page: tuple[int, str] | None = (0, "")
        while page is not None:
            found = await self._run(
                "find waiting events of a user",
                partial(erase.waiting_of, user_id=user_id, after=page, limit=FIRST_BATCH),
            )
            for room_no, event_ids in found.by_room.items():
                await self._run(
                    "drop waiting events",
                    partial(erase.drop_waiting, room_no=room_no, event_ids=event_ids),
                )
            page = found.next_page
