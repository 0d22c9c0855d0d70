"""Completes one partial room, phase after phase. Everything it knows is in tables, so any process can go on with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError, Unavailable
from synrepl.core.log import Logger
from synrepl.core.retry import BackOff
from synrepl.federation.answers import StateIds
from synrepl.services.federation.resync.fetching import ListFetcher
from synrepl.services.federation.resync.interfaces import (
    AsksForStates,
    PushesJoins,
    VerifiesEvents,
)
from synrepl.services.federation.resync.servers import RoomServers
from synrepl.services.federation.storing_outliers import FetchedOutliers
from synrepl.services.rooms.persister import RoomPersister
from synrepl.storage.database import Database, Transaction
from synrepl.storage.rooms.partial.jobs import (
    ClaimLost,
    ResyncJob,
    move_on,
    put_off,
    require_claim,
)
from synrepl.storage.rooms.partial.steps import (
    MAX_JUDGED,
    ListTarget,
    begin_list,
    drop_list,
    events_stored,
    fault_of_list,
    forget_lost_list,
    judge_some,
    list_target,
    make_listed_state,
    refused_join,
    verify_states,
)
from synrepl.storage.rooms.partial.swap import SwapRun
from synrepl.storage.rooms.partial.swap_facts import RESYNC_STREAMS
from synrepl.storage.rooms.persisting.limits import RoomLimits
from synrepl.storage.rooms.persisting.room_memory import RoomMemory
from synrepl.storage.rooms.tables.partial_rooms import ResyncPhase
from synrepl.storage.store import DatabaseAway

T = TypeVar("T")

#: How long a room waits after a round through its servers that led to nothing.
ROOM_BACK_OFF = BackOff(5.0, 600.0)


class NoServerHelps(Unavailable):
    """none of the servers that were asked could help to complete room {room_id}; the last: {reason}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResyncParts:
    """What completing rooms needs.

    :ivar persister: of this process
    :ivar pusher: tells servers of the join
    :ivar limits: of each room
    """

    scheduler: Scheduler
    database: Database
    persister: RoomPersister
    client: AsksForStates
    verifier: VerifiesEvents
    pusher: PushesJoins
    server_name: str
    limits: RoomLimits
    log: Logger


class RoomResync:
    """The work on a job that was claimed, until the room is complete or has to wait."""

    def __init__(self, parts: ResyncParts, job: ResyncJob) -> None:
        self._parts = parts
        self._job = job
        self._servers = RoomServers(
            parts.scheduler, parts.database, parts.pusher, job, parts.server_name, parts.log
        )
        self._fetched = FetchedOutliers(
            parts.database,
            parts.persister,
            job.room_no,
            job.room_id,
            job.version,
            lambda txn, ids, cited: events_stored(txn, job, ids, cited),
        )
        self._fetcher = ListFetcher(
            parts.scheduler,
            parts.database,
            parts.client,
            parts.verifier,
            self._servers,
            self._fetched,
            job,
        )
        self._size = MAX_JUDGED // 4
        self._memory: RoomMemory | None = None
        self._phases: Mapping[ResyncPhase, Callable[[ResyncJob], Awaitable[None]]] = {
            ResyncPhase.IDS: self._ids,
            ResyncPhase.EVENTS: self._events,
            ResyncPhase.JUDGE: self._judge,
            ResyncPhase.VERIFY: self._verify,
            ResyncPhase.SWAP: self._swap,
        }

    async def run(self) -> None:
        """Go on with the job. It never raises: what goes wrong is recorded, and the job is put off."""
        try:
            while True:
                job = await self._run("look at the job", lambda txn: require_claim(txn, self._job))
                await self._phases[job.phase](job)
        except ClaimLost:
            return
        except DatabaseAway:
            return  # the claim ends by itself
        except SynreplError as error:
            await self._put_off(error)

    async def _put_off(self, error: SynreplError) -> None:
        parts, job = self._parts, self._job
        parts.log.warn("{room} is not complete yet: {reason}", room=job.room_id, reason=error)
        failures = job.failures + 1
        wait_s = ROOM_BACK_OFF.delay_s(failures, parts.scheduler.random)
        try:
            await self._run("put off", lambda txn: put_off(txn, job, str(error), wait_s, failures))
        except SynreplError:
            return  # the claim ends by itself

    async def _run(self, name: str, work: Callable[[Transaction], T]) -> T:
        return await self._parts.database.run(f"{name} of {self._job.room_id}", work)

    async def _move_on(self, phase: ResyncPhase) -> None:
        def work(txn: Transaction) -> None:
            move_on(txn, require_claim(txn, self._job), phase)

        await self._run("move on", work)

    # -- phases ---------------------------------------------------------------------------

    async def _ids(self, job: ResyncJob) -> None:
        """Have a server list the state before the first event that needs one."""
        target = await self._run("next state", lambda txn: list_target(txn, job.room_no))
        if target is None:
            await self._move_on(ResyncPhase.JUDGE)
            return
        for server in await self._servers.in_order():
            if server in self._servers.distrusted:
                continue
            ids = await self._listed_by(server, target)
            if ids is not None:
                work = partial(begin_list, job=job, target=target, source=server, listed=ids)
                await self._run("list", work)
                await self._servers.helped(server)
                return
        raise NoServerHelps(room_id=job.room_id, reason=self._servers.reason)

    async def _listed_by(self, server: str, target: ListTarget) -> StateIds | None:
        """The list of a server; None if it has none, or none that can be right."""
        room_id, client = self._job.room_id, self._parts.client
        ids = await self._servers.ask(
            server, lambda: client.state_ids(server, room_id, target.event_id)
        )
        if ids is None:
            return None
        fault = _fault_of_ids(ids, target)
        if fault is not None:
            await self._servers.failed(server, "bad-answer", fault)
            return None
        return ids

    async def _events(self, job: ResyncJob) -> None:
        """Fetch and store the listed events that are missing, and make the state of the list."""
        target = await self._run("next state", lambda txn: list_target(txn, job.room_no))
        if target is None or target.event_no != job.event_no:
            await self._drop(job, "outdated", "another state is needed now")
            return
        if await self._run("look for the list", lambda txn: forget_lost_list(txn, job)):
            return
        if await self._fetch_all(job, target):
            await self._store(job, target)

    async def _fetch_all(self, job: ResyncJob, target: ListTarget) -> bool:
        """Fetch what is missing; False if the list was dropped.

        :raises NoServerHelps: nobody could be reached who has it
        """
        missing = before = await self._fetcher.missing()
        has_answered = False
        servers = await self._servers.in_order(job.source) if missing else []
        # Single events are slow where there are many, so every server is asked for all of them first.
        for one_by_one, server in [(each, name) for each in (False, True) for name in servers]:
            answered = await self._fetcher.fetch_from(
                server, target.event_id, job.listed, one_by_one=one_by_one
            )
            missing = await self._fetcher.missing()
            if not missing:
                return True
            if answered and server == job.source:
                await self._drop(job, "incomplete", f"it has not {missing} events that it listed")
                return False
            has_answered = has_answered or answered
        if missing and has_answered and missing == before:
            await self._drop(job, "incomplete", f"nobody has {missing} events that it listed")
            return False
        if missing:
            raise NoServerHelps(room_id=job.room_id, reason=self._servers.reason)
        return True

    async def _store(self, job: ResyncJob, target: ListTarget) -> None:
        fault = await self._run(
            "check the list", lambda txn: fault_of_list(txn, job, target.create_id)
        )
        if fault is None:
            done = await self._fetched.store()
            if done.cited:
                return  # they are fetched, too
            fault = done.fault
        if fault is not None:
            await self._drop(job, "bad-answer", fault)
            return
        await self._run(
            "make the state", lambda txn: make_listed_state(txn, job, self._parts.limits)
        )

    async def _drop(self, job: ResyncJob, code: str, reason: str) -> None:
        """Drop a list, and ask another server."""
        if job.source is not None:
            self._servers.distrusted.add(job.source)
        self._servers.reason = f"{job.source}: {reason}"
        await self._run("drop the list", lambda txn: drop_list(txn, job, code, reason))

    async def _judge(self, job: ResyncJob) -> None:
        """Judge a batch of events again."""
        done = await self._run(
            "judge events",
            lambda txn: judge_some(txn, job, self._size, self._memory, self._parts.limits),
        )
        self._size, self._memory = done.size, done.memory

    async def _verify(self, job: ResyncJob) -> None:
        if await self._run("check the join", lambda txn: refused_join(txn, job)):
            if job.source is not None:
                self._servers.distrusted.add(job.source)
            return
        await self._run("verify the states", lambda txn: verify_states(txn, job))

    async def _swap(self, job: ResyncJob) -> None:
        """Complete the room, unless events have come that must be judged first."""
        parts = self._parts
        done = await parts.persister.rework(
            job.room_id,
            f"complete room {job.room_id}",
            RESYNC_STREAMS,
            SwapRun(job, parts.server_name, parts.limits),
        )
        if not done.is_complete:
            await self._move_on(ResyncPhase.JUDGE)
            return
        parts.log.info(
            "{room} has its full state: {events} events judged again, {accepted} of them wrongly accepted,"
            " {rejected} wrongly rejected, {entries} entries of its state changed",
            room=job.room_id,
            events=done.events,
            accepted=done.wrongly_accepted,
            rejected=done.wrongly_rejected,
            entries=done.changed_entries,
        )


def _fault_of_ids(ids: StateIds, target: ListTarget) -> str | None:
    """Why a list cannot be right, as far as its IDs tell."""
    if not ids.state:
        return "its state has no events"
    if target.create_id is not None and target.create_id not in ids.state:
        return f"its state has not {target.create_id}, the m.room.create of the room"
    if target.event_id in ids.state or target.event_id in ids.auth_chain:
        return f"the state before {target.event_id} has that event itself"
    if any("\0" in each for each in (*ids.state, *ids.auth_chain)):
        return "an ID has the character NUL"
    return None
