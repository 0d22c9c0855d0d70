"""Joins and resyncs in the caller's thread, killed wherever a test wants."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, succeed

from simulator.rooms.server import result_of
from simulator.rooms.watched_transaction import WatchedTransaction
from synrepl.core.tokens import Token
from synrepl.driver.blocking import BlockingDatabase
from synrepl.federation.answers import StateIds
from synrepl.federation.errors import RequestRefusedByServer
from synrepl.services.federation.resync.room_resync import ResyncParts, RoomResync
from synrepl.storage.database import Isolation, Transaction
from synrepl.storage.outbox import Outbox
from synrepl.storage.rooms.partial.jobs import claim_jobs
from synrepl.storage.rooms.partial.join_run import PartialJoinAnswer, PartialJoinRun
from synrepl.storage.rooms.partial.swap_facts import RESYNC_STREAMS
from synrepl.storage.rooms.persisting.limits import DEFAULT_LIMITS
from synrepl.storage.rooms.persisting.persist_run import PersistRun
from synrepl.storage.rooms.persisting.room_memory import RoomMemories
from synrepl.storage.rooms.tables.incoming import IncomingEvent, PersistedBatch
from synrepl.streams.definition import Stream
from synrepl.streams.rows import RowCodec
from tests.services.federation.resync.random_joined_room import (
    SERVER,
    RandomJoinedRoom,
    UncheckedEvents,
)
from tests.services.world import NullLog

T = TypeVar("T")

_CODECS = {stream.name: RowCodec(stream) for stream in RESYNC_STREAMS}


class KilledHere(BaseException):
    """The process is killed."""


class Kills:
    """Where processes were killed: at each statement of each kind of transaction, before, after and at its COMMIT.

    :ivar places: those places; at each a process is killed once
    """

    def __init__(self) -> None:
        self.places: set[tuple[str, ...]] = set()

    def reached(self, *place: str) -> None:
        """Kill the process here the first time.

        :raises KilledHere:
        """
        if place not in self.places:
            self.places.add(place)
            raise KilledHere(place)


class NoKills(Kills):
    """Nobody is killed."""

    def reached(self, *place: str) -> None:
        """Do nothing."""


class KilledDatabase:
    """A blocking database as a :class:`~synrepl.storage.database.Database`."""

    def __init__(self, database: BlockingDatabase, kills: Kills) -> None:
        self._database = database
        self.kills = kills

    async def run(
        self,
        name: str,
        work: Callable[[Transaction], T],
        *,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> T:
        """Run work in a transaction in which the process may be killed."""

        def killed(txn: Transaction) -> T:
            result = work(WatchedTransaction(txn, lambda sql: self.kills.reached(name, sql)))
            self.kills.reached(name, "before COMMIT")
            return result

        result = self._database.run(name, killed, read_only=read_only, isolation=isolation)
        self.kills.reached(name, "after COMMIT")
        return result


class SynchronousScheduler:
    """Runs everything at once."""

    def seconds(self) -> float:
        return 1_000_000_000.0

    def random(self) -> float:
        return 0.5

    def promise(self) -> Deferred[Any]:
        return Deferred()

    def spawn(self, name: str, coroutine: Coroutine[Any, Any, object]) -> None:
        result_of(coroutine)

    def sleep(self, seconds: float) -> Deferred[None]:
        return succeed(None)

    def callLater(self, delay: float, call: Callable[..., object], *args: object) -> Any:
        raise AssertionError("nothing is done later")


class BlockingRoomServer:
    """A process that persists and completes rooms.

    :ivar facts: rows by stream that were committed, in order
    """

    def __init__(self, dsn: str, name: str, facts: dict[str, list[Any]]) -> None:
        self.database = BlockingDatabase(dsn, name)
        self.name = name
        self.facts = facts
        self.kills: Kills = NoKills()
        self.restart()

    def restart(self) -> None:
        """As a new process: nothing is in memory."""
        self.memories = RoomMemories()
        self.room_nos: dict[str, int] = {}

    # -- what a RoomPersister does --------------------------------------------------------

    async def persist(
        self, room_id: str, version: str, events: Sequence[IncomingEvent]
    ) -> PersistedBatch:
        run = PersistRun(room_id, version, events, self.memories, self.room_nos)
        await self.rework(room_id, f"persist events of {room_id}", RESYNC_STREAMS, run)
        return self._committed(room_id, run)

    async def join(self, answer: PartialJoinAnswer) -> PersistedBatch:
        run = PartialJoinRun(answer, self.memories, self.room_nos, DEFAULT_LIMITS)
        await self.rework(answer.join.join.room_id, "join", RESYNC_STREAMS, run)
        return self._committed(answer.join.join.room_id, run)

    def _committed(self, room_id: str, run: PersistRun) -> PersistedBatch:
        result, memory = run.result, run.memory
        assert memory is not None
        self.memories.put_back(room_id, memory)
        self.room_nos[room_id] = result.room_no
        return result

    async def rework(
        self,
        room_id: str,
        name: str,
        streams: Sequence[Stream],
        work: Callable[[Transaction, Outbox], T],
    ) -> T:
        """Run a writer's transaction in which the process may be killed."""
        posted: list[tuple[str, Any]] = []

        def killed(txn: Transaction) -> T:
            posted.clear()
            watched = WatchedTransaction(txn, lambda sql: self.kills.reached(name, sql))
            outbox = Outbox({stream.name: _CODECS[stream.name] for stream in streams})
            result = work(watched, outbox)
            outbox.close()
            tokens: dict[str, list[Token]] = {}
            for stream, facts in outbox.facts.items():
                at = txn.execute(f"SELECT last_value FROM synrepl._{stream}_seq").fetchone()[0]
                for number, rows in enumerate(facts, 1):
                    tokens.setdefault(stream, []).append(int(at) + number)
                    posted.append((stream, rows))
                txn.execute(f"SELECT setval('synrepl._{stream}_seq', %s)", (tokens[stream][-1],))
            outbox.reserved(watched, tokens)
            self.kills.reached(name, "before COMMIT")
            return result

        result = self.database.run(name, killed)
        for stream, rows in posted:
            self.facts.setdefault(stream, []).extend(rows)
        self.kills.reached(name, "after COMMIT")
        return result

    # -- the resync -----------------------------------------------------------------------

    def complete(self, client: KnowingClient) -> bool:
        """Claim a job and work on it; returns whether there was one."""
        database = KilledDatabase(self.database, self.kills)
        jobs = result_of(
            database.run(
                "claim jobs",
                lambda txn: claim_jobs(txn, self.name, 1, lambda txn, rooms: rooms),
            )
        )
        for job in jobs:
            parts = ResyncParts(
                scheduler=SynchronousScheduler(),
                database=database,
                persister=self,  # type: ignore[arg-type]
                client=client,
                verifier=UncheckedEvents(),
                pusher=NoPusher(),
                server_name=SERVER,
                limits=DEFAULT_LIMITS,
                log=NullLog(),
            )
            result_of(RoomResync(parts, job).run())
        return bool(jobs)


class NoPusher:
    """Tells nobody."""

    async def push(self, destination: str, room_id: str) -> None:
        """Do nothing."""


class KnowingClient:
    """Asks servers that know a random room."""

    def __init__(self, room: RandomJoinedRoom) -> None:
        self._room = room

    def _check(self, event_id: str) -> None:
        if event_id not in self._room.whole:
            raise RequestRefusedByServer(
                destination="a", subject=event_id, status=404, errcode="M_NOT_FOUND", message=""
            )

    async def state_ids(self, destination: str, room_id: str, event_id: str) -> StateIds:
        self._check(event_id)
        whole = self._room.whole
        state = [whole[each].event for each in whole.state_before(event_id).values()]
        chain = self._room.chain(state)
        return StateIds(
            tuple(each.event_id for each in state), tuple(each.event_id for each in chain)
        )

    async def state(
        self, destination: str, room_id: str, event_id: str
    ) -> AbstractContextManager[Any]:
        raise AssertionError("the rooms are small")

    async def event(self, destination: str, event_id: str) -> bytes:
        self._check(event_id)
        return self._room.whole[event_id].event.raw

    async def send_transaction(
        self,
        destination: str,
        txn_id: str,
        origin_ts: int,
        pdus: Sequence[bytes],
        edus: Sequence[bytes],
    ) -> Mapping[str, str | None]:
        return {}
