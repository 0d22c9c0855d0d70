"""What happens in the demo, from an empty directory to a verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from synrepl.adapters.postgres import Limits, PostgresDatabase
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.client.client import Client
from synrepl.core.errors import Unavailable
from synrepl.daemon.cli.running import aside
from synrepl.daemon.demo.child_process import DaemonProcess
from synrepl.daemon.demo.history import History
from synrepl.daemon.demo.outcome import Appended, Behind, Outcome
from synrepl.daemon.demo.screen import Figures, Screen, WorkerFigures
from synrepl.daemon.demo.senders import Senders
from synrepl.daemon.demo.site import MASTER, Site, Worker
from synrepl.daemon.demo.tally import TallyTable
from synrepl.daemon.demo.traffic import Request, Traffic
from synrepl.daemon.demo.verification import Verification, Verified
from synrepl.daemon.demo.watched import COUNTS, Watched
from synrepl.services.following.source import LINEAR
from synrepl.services.standing.standing import writer_label
from synrepl.storage.database import Isolation, Transaction
from synrepl.storage.launch.redis import RedisServer
from synrepl.streams.catalogue import Catalogue

T = TypeVar("T")

#: Shares of the rows at which something happens.
KILL_AT, START_AGAIN_AT, RESTART_AT, WAIT_AT = 0.2, 0.4, 0.6, 0.8
REDIS_AWAY_AT, REDIS_BACK_AT = 0.45, 0.55

#: How long it may be that nothing moves, in seconds.
STUCK_S = 60.0

_LOOK_S = 0.2


class Stuck(Unavailable):
    """nothing has moved for {seconds:.0f} s while the demo waited until {what}"""


class Scenario:
    """Plays the demo.

    :param rows: how many are appended
    :param redis: over which the processes of the site hear each other, not started; None
        where they do not, or over one that is left alone
    """

    def __init__(
        self,
        reactor: Any,
        site: Site,
        catalogue: Catalogue,
        rows: int,
        screen: Screen,
        redis: RedisServer | None = None,
    ) -> None:
        self._reactor = reactor
        self._scheduler = TwistedScheduler(reactor)
        self._site = site
        self._catalogue = catalogue
        self._rows = rows
        self._screen = screen
        self._redis = redis
        self._traffic = Traffic(catalogue, rows)
        self._clients = {MASTER: Client(site.url)}
        self._senders = Senders(self._client_for, self._traffic.requests())
        self._processes = {MASTER: self._process("master", MASTER)}
        self._watched = {MASTER: Watched(site.url)}
        for worker in site.workers:
            self._processes[worker.name] = self._process("worker", worker.name)
            self._watched[worker.name] = Watched(worker.url)
            self._clients[worker.name] = Client(worker.url)
        self._down = dict.fromkeys(self._processes, "starting")
        self._history = History()

    async def play(self) -> Outcome:
        """Play it; everything still runs when this returns, until :meth:`end`.

        :raises SynreplError: it could not be played
        """
        await self._start()
        begun = self._scheduler.seconds()
        await self._append()
        told = self._senders.acknowledged
        appended = Appended(self._scheduler.seconds() - begun, told.again, told.replayed)
        await self._catch_up()
        return await self._compare(appended)

    async def stay(self) -> None:
        """Stay as it is; never returns.

        :raises Ended: a process has ended by itself
        """
        while True:
            await self._scheduler.sleep(1.0)
            for process in self._processes.values():
                process.check()

    async def end(self) -> None:
        """End all processes: the workers, the master, Redis."""
        self._senders.stop()
        master, *workers = self._processes.values()
        for worker in workers:
            worker.ask_to_stop()
        for process in (*workers, master):
            await process.stop()
        if self._redis is not None:
            self._redis.stop()

    # -- acts ---------------------------------------------------------------------------

    async def _start(self) -> None:
        begun = self._scheduler.seconds()
        if self._redis is not None:
            self._redis.start()
        await self._run(MASTER)
        await self._with_database(self._make_tables)
        await self._run(*(worker.name for worker in self._site.workers))
        took = self._scheduler.seconds() - begun
        servers = "PostgreSQL, Redis" if self._redis is not None else "PostgreSQL"
        workers = f"a master and {len(self._site.workers)} workers"
        self._screen.happened(f"{servers}, {workers} are up after {took:.1f} s")
        self._screen.happened(f"(a live page about them is at {self._site.url}/)")

    async def _append(self) -> None:
        senders, mortal = self._senders, self._site.mortal.name
        senders.allow(self._share(START_AGAIN_AT))
        senders.start()
        await self._until_appended(KILL_AT)
        await self._processes[mortal].kill()
        self._down[mortal] = "killed"
        self._screen.happened(f"worker {mortal} killed (SIGKILL) at {senders.rows:,} rows")
        await self._until_appended(START_AGAIN_AT)
        applied = await self._with_database(TallyTable(mortal).rows)
        self._watched[mortal].restarted(applied)
        senders.allow(self._share(WAIT_AT if self._redis is None else REDIS_AWAY_AT))
        self._screen.happened(f"worker {mortal} is started again at {senders.rows:,} rows")
        await self._run(mortal)
        if self._redis is not None:
            await self._lose(self._redis)
        await self._until_appended(RESTART_AT)
        await self._until("every worker has what is in memory", self._fleeting_is_everywhere)
        await self._restart_master()
        await self._until("all is appended", lambda: senders.done)

    async def _lose(self, redis: RedisServer) -> None:
        """Nobody hears anything while rows are appended."""
        await self._until_appended(REDIS_AWAY_AT)
        redis.kill()
        self._screen.happened(f"Redis killed (SIGKILL) at {self._senders.rows:,} rows")
        self._senders.allow(self._share(REDIS_BACK_AT))
        await self._until_appended(REDIS_BACK_AT)
        redis.start()
        self._senders.allow(self._share(WAIT_AT))
        self._screen.happened(f"Redis is started again at {self._senders.rows:,} rows")

    async def _restart_master(self) -> None:
        self._senders.allow_all()
        begun, at = self._scheduler.seconds(), self._senders.rows
        self._down[MASTER] = "restarting"
        await self._processes[MASTER].stop()
        self._watched[MASTER].restarted()
        await self._run(MASTER)
        took = self._scheduler.seconds() - begun
        self._screen.happened(
            f"master and PostgreSQL restarted at {at:,} rows, away for {took:.1f} s"
        )

    async def _catch_up(self) -> None:
        """Wait until the workers are where the master is; if they get stuck, the report tells."""
        try:
            await self._until(
                "every worker is where the master is",
                lambda: self._all_answer() and not self._behind(),
            )
        except Stuck as stuck:
            self._screen.happened(str(stuck))

    async def _compare(self, appended: Appended) -> Outcome:
        self._screen.happened("comparing what was appended, what is stored and what was applied")
        verification = Verification(self._traffic, self._senders.acknowledged, self._site.workers)
        streams = [self._catalogue[name] for name in verification.streams]

        def verify(txn: Transaction) -> dict[str, Verified]:
            return {stream.name: verification.verify(txn, stream) for stream in streams}

        verified = await self._with_database(verify)
        # Where they stand is what the last look saw: idle writers go on by themselves since,
        # first the master, then the others.
        workers = [(worker.name, self._watched[worker.name]) for worker in self._site.workers]
        return Outcome(
            appended=appended,
            streams=verified,
            fleeting=frozenset(stream.name for stream in streams if stream.in_memory),
            counts={name: {c: watched.counts(c) for c in COUNTS} for name, watched in workers},
            positions={
                stream.name: {
                    name: watched.positions(stream.name) for name, watched in self._watched.items()
                }
                for stream in streams
            },
            behind=self._behind(),
        )

    # -- passing the time ---------------------------------------------------------------

    async def _until_appended(self, share: float) -> None:
        rows = self._share(share)
        await self._until(f"{rows:,} rows are appended", lambda: self._senders.rows >= rows)

    async def _until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until something is so.

        :raises Stuck: nothing moves any more
        """
        before: object = None
        since = 0.0
        while not condition():
            counts = [watched.counts("rows").total() for watched in self._watched.values()]
            now = (self._senders.rows, counts)
            if now != before:
                before, since = now, self._scheduler.seconds()
            elif self._scheduler.seconds() - since > STUCK_S:
                raise Stuck(seconds=STUCK_S, what=what)
            await self._pass_time()

    async def _pass_time(self) -> None:
        await self._scheduler.sleep(_LOOK_S)
        for name, process in self._processes.items():
            if name not in self._down:
                process.check()
        await self._look()
        self._screen.show(self._figures())

    async def _look(self) -> None:
        looks = [aside(self._reactor, watched.look) for watched in self._watched.values()]
        for look in looks:
            await look

    async def _run(self, *names: str) -> None:
        """Start processes, and wait until they are ready."""
        for name in names:
            self._processes[name].start()
            self._down[name] = "starting"
        for name in names:
            while not await aside(self._reactor, self._watched[name].ready):
                self._processes[name].check()
                await self._pass_time()
            del self._down[name]

    # -- what is known ------------------------------------------------------------------

    def _share(self, share: float) -> int:
        return int(share * self._rows)

    def _knows(self, worker: Worker, stream: str) -> bool:
        return worker.generation in self._catalogue[stream].generations

    def _fleeting_is_everywhere(self) -> bool:
        """Every worker has all of the streams that are lost with the master."""
        for stream, last in self._senders.last_tokens().items():
            if not self._catalogue[stream].in_memory:
                continue
            for worker in self._site.workers:
                if self._knows(worker, stream):
                    writer = writer_label(LINEAR if worker.is_linear else MASTER)
                    reached = self._watched[worker.name].positions(stream).get(writer)
                    if reached is None or reached < last:
                        return False
        return True

    def _all_answer(self) -> bool:
        return not any(watched.away for watched in self._watched.values())

    def _behind(self) -> tuple[Behind, ...]:
        """The workers that are not where the master is."""
        master = self._watched[MASTER]
        return tuple(
            Behind(stream.name, worker.name, writer, reached, at)
            for stream in self._catalogue
            for worker in self._site.workers
            if self._knows(worker, stream.name)
            for writer, at in master.positions(stream.name).items()
            if (writer == writer_label(LINEAR)) is worker.is_linear
            # A writer that has not written yet need not be known to the worker.
            for reached in [self._watched[worker.name].positions(stream.name).get(writer) or 0]
            if reached != at
        )

    def _figures(self) -> Figures:
        appended = self._senders.rows_by_stream
        now = self._scheduler.seconds()
        self._history.note(now, appended.total())
        workers = {}
        for worker in self._site.workers:
            watched = self._watched[worker.name]
            unknown = sum(n for stream, n in appended.items() if not self._knows(worker, stream))
            applied = watched.counts("rows").total()
            workers[worker.name] = WorkerFigures(
                applied=applied,
                lag_rows=max(0, appended.total() - unknown - applied),
                lag_s=now - self._history.when(applied + unknown, now),
                state=self._down.get(worker.name) or ("no answer" if watched.away else None),
            )
        return Figures(appended.total(), self._rows, self._history.rate(now), workers)

    # -- the database -------------------------------------------------------------------

    def _make_tables(self, txn: Transaction) -> None:
        for worker in self._site.workers:
            TallyTable(worker.name).create(txn)

    async def _with_database(self, work: Callable[[Transaction], T]) -> T:
        limits = Limits(connections=1, idle_s=0)
        database = PostgresDatabase(self._reactor, self._site.dsn, "demo", limits)
        try:
            return await database.run("demo", work, isolation=Isolation.REPEATABLE_READ)
        finally:
            await database.close()

    def _client_for(self, request: Request) -> Client:
        writers = self._site.writers_of(request.stream)
        return self._clients[writers[request.number % len(writers)]]

    def _process(self, role: str, name: str) -> DaemonProcess:
        site = self._site
        return DaemonProcess(self._scheduler, role, name, site.config(name), site.log(name))
