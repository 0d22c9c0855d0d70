"""Completes the partial rooms of a server, some at a time, in the processes that persist them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from synrepl.core.errors import SynreplError
from synrepl.core.semaphore import Semaphore
from synrepl.services.federation.resync.room_resync import ResyncParts, RoomResync
from synrepl.services.rooms.assignment import RoomAssignment
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.partial.abandoning import abandon_room, rooms_without_users
from synrepl.storage.rooms.partial.jobs import (
    ResyncJob,
    claim_jobs,
    put_off,
    release_claims,
    renew_claims,
    wake_jobs,
)
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.storage.rooms.tables.room_writers import read_placements

#: Seconds between two looks for jobs, unless the worker is woken; and between two renewals of claims.
LOOK_S, RENEW_S = 5.0, 10.0

#: Rooms that a process completes at the same time.
SLOTS = 2


class ResyncWorker:
    """Claims jobs, and works on them.

    A room is completed by the process that it is assigned to, which has it in memory. If that one does not claim the job
    for long, as when it does not run, any other does.

    :param instance: this process
    :param configured: the processes that rooms are assigned to by the configuration
    :param slots: rooms that are completed at the same time
    """

    def __init__(
        self,
        parts: ResyncParts,
        instance: str,
        configured: Sequence[str],
        slots: int = SLOTS,
    ) -> None:
        self._parts = parts
        self._instance = instance
        self._configured = tuple(configured)
        self._slots = slots
        self._jobs: dict[int, ResyncJob] = {}
        self._is_running = True
        self._looking = Semaphore(parts.scheduler, 1)
        self._renewed_at = parts.scheduler.seconds()

    @property
    def rooms(self) -> Collection[str]:
        """The rooms that are being completed here."""
        return [job.room_id for job in self._jobs.values()]

    async def run(self) -> None:
        """Work until :meth:`stop`; first on what this process was working on when it was killed."""
        scheduler = self._parts.scheduler
        try:
            await self._parts.database.run(
                "release claims", lambda txn: release_claims(txn, self._instance)
            )
        except SynreplError as error:
            self._parts.log.warn("cannot release partial rooms: {error}", error=error)
        while self._is_running:
            await self.look()
            await self._renew()
            await scheduler.sleep(LOOK_S)

    async def stop(self) -> None:
        """Claim nothing any more, and let other processes have the jobs."""
        self._is_running = False
        jobs = list(self._jobs.values())

        def work(txn: Transaction) -> None:
            for job in jobs:
                put_off(txn, job, "the process that worked on it stops", 0.0, job.failures)

        if jobs:
            await self._parts.database.run("release jobs", work)

    def wake(self) -> None:
        """Look for jobs now, as after a join."""
        if self._is_running:
            self._parts.scheduler.spawn("look for partial rooms", self.look())

    def server_is_up(self, server: str) -> None:
        """Go on with the rooms that a server could not help with which is up again."""
        if self._is_running:
            self._parts.scheduler.spawn(f"go on by {server}", self._go_on(server))

    async def _go_on(self, server: str) -> None:
        try:
            woken = await self._parts.database.run("wake jobs", lambda txn: wake_jobs(txn, server))
        except SynreplError as error:
            self._parts.log.warn("cannot wake jobs: {error}", error=error)
            return
        if woken:
            await self.look()

    async def look(self) -> None:
        """Claim jobs as far as there are slots, and let go of rooms that no user is in any more."""
        async with self._looking:
            if not self._is_running:
                return
            try:
                await self._look()
            except SynreplError as error:
                self._parts.log.warn("cannot look for partial rooms: {error}", error=error)

    async def _look(self) -> None:
        await self._abandon()
        free = self._slots - len(self._jobs)
        if not free:
            return
        jobs = await self._parts.database.run(
            "claim jobs",
            lambda txn: claim_jobs(txn, self._instance, free, self._ours, list(self._jobs)),
        )
        for job in jobs:
            self._jobs[job.room_no] = job
            self._parts.scheduler.spawn(f"complete room {job.room_id}", self._work(job))

    def _ours(self, txn: Transaction, room_ids: Sequence[str]) -> Collection[str]:
        found = read_placements(txn, room_ids)
        assignment = RoomAssignment(found.writers or self._configured, found.moved)
        return [each for each in room_ids if assignment.writer_of(each) == self._instance]

    async def _work(self, job: ResyncJob) -> None:
        try:
            await RoomResync(self._parts, job).run()
        finally:
            del self._jobs[job.room_no]
            self.wake()

    async def _renew(self) -> None:
        now = self._parts.scheduler.seconds()
        if not self._jobs or now - self._renewed_at < RENEW_S:
            return
        self._renewed_at = now
        jobs = list(self._jobs.values())
        try:
            await self._parts.database.run("renew claims", lambda txn: renew_claims(txn, jobs))
        except SynreplError as error:
            self._parts.log.warn("cannot renew claims: {error}", error=error)

    async def _abandon(self) -> None:
        """Let go of partial rooms that no user of this server is in any more."""
        parts = self._parts
        rooms = await parts.database.run(
            "partial rooms without users",
            lambda txn: rooms_without_users(txn, parts.server_name),
            read_only=True,
        )
        for room_no, room_id in rooms:
            work = partial(abandon_room, room_no=room_no, server_name=parts.server_name)
            await parts.persister.rework(room_id, f"abandon room {room_id}", ROOM_STREAMS, work)
