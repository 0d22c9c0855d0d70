"""The course of a demo run: from an empty directory to the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from synrepl.adapters.postgres.database import DatabaseLimits, PostgresDatabase
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.cli.demo.deployment import MASTER, Deployment, WorkerSpec
from synrepl.cli.demo.progress import COUNTERS, ProgressDisplay, StatusPoller, WorkerProgress
from synrepl.cli.demo.recorder import AppliedTable
from synrepl.cli.demo.report import AppendSummary, DemoResult, LaggingWorker
from synrepl.cli.demo.traffic import AppendRequest, Senders, Traffic
from synrepl.cli.demo.verification import Verification
from synrepl.cli.running import run_in_thread
from synrepl.client.client import Client
from synrepl.core.errors import Unavailable
from synrepl.services.sources import LINEAR
from synrepl.services.status.stream_progress import writer_label
from synrepl.storage.database import Isolation, Transaction
from synrepl.storage.launch.redis import RedisProcess
from synrepl.streams.catalogue import Catalogue

T = TypeVar("T")

#: When failures happen, as shares of the rows appended.
KILL_AT, START_AGAIN_AT, RESTART_AT, WAIT_AT = 0.2, 0.4, 0.6, 0.8
REDIS_KILL_AT, REDIS_START_AT = 0.45, 0.55

#: Seconds without any progress after which a wait is given up.
STALL_TIMEOUT_S = 60.0

_POLL_INTERVAL_S = 0.2


class Stalled(Unavailable):
    """nothing has moved for {seconds:.0f} s while the demo waited until {condition}"""


class Scenario:
    """Runs the demo.

    :param rows: number of rows to append
    :param redis: the Redis that the deployment uses, not started; None without Redis, or with one
        that the demo must not touch
    """

    def __init__(
        self,
        reactor: Any,
        deployment: Deployment,
        catalogue: Catalogue,
        rows: int,
        display: ProgressDisplay,
        redis: RedisProcess | None = None,
    ) -> None:
        self._reactor = reactor
        self._scheduler = TwistedScheduler(reactor)
        self._deployment = deployment
        self._catalogue = catalogue
        self._rows = rows
        self._display = display
        self._redis = redis
        self._traffic = Traffic(catalogue, rows)
        urls = {MASTER: deployment.url} | {each.name: each.url for each in deployment.workers}
        self._clients = {name: Client(url) for name, url in urls.items()}
        self._pollers = {name: StatusPoller(url) for name, url in urls.items()}
        self._processes = {name: deployment.process(self._scheduler, name) for name in urls}
        self._senders = Senders(self._client_for, self._traffic.requests())
        self._down = dict.fromkeys(self._processes, "starting")

    async def run(self) -> DemoResult:
        """Run the demo; its processes keep running until :meth:`stop`.

        :raises SynreplError: the run could not be completed
        """
        await self._start()
        started = self._scheduler.seconds()
        await self._append()
        acknowledged = self._senders.acknowledged
        seconds = self._scheduler.seconds() - started
        await self._catch_up()
        return await self._verify(
            AppendSummary(seconds, acknowledged.resent, acknowledged.replayed)
        )

    async def keep_running(self) -> None:
        """Keep the processes running; never returns.

        :raises DaemonEnded: a process has ended by itself
        """
        while True:
            await self._scheduler.sleep(1.0)
            for process in self._processes.values():
                process.check()

    async def stop(self) -> None:
        """Stop all processes: the workers, then the master, then Redis."""
        self._senders.stop()
        master, *workers = self._processes.values()
        for worker in workers:
            worker.terminate()
        for process in (*workers, master):
            await process.stop()
        if self._redis is not None:
            self._redis.stop()

    # -- the course ---------------------------------------------------------------------

    async def _start(self) -> None:
        started = self._scheduler.seconds()
        if self._redis is not None:
            self._redis.start()
        await self._start_processes(MASTER)
        await self._in_transaction(self._create_tables)
        await self._start_processes(*(worker.name for worker in self._deployment.workers))
        seconds = self._scheduler.seconds() - started
        servers = "PostgreSQL, Redis" if self._redis is not None else "PostgreSQL"
        workers = f"a master and {len(self._deployment.workers)} workers"
        self._display.log(f"{servers}, {workers} are up after {seconds:.1f} s")
        self._display.log(
            "(flaky will be killed, slow delays every row, legacy speaks an old dialect)"
        )
        self._display.log(f"(live status page: {self._deployment.url}/)")

    async def _append(self) -> None:
        senders, flaky = self._senders, self._deployment.flaky.name
        senders.allow(self._share(START_AGAIN_AT))
        senders.start()
        await self._until_appended(KILL_AT)
        await self._processes[flaky].kill()
        self._down[flaky] = "killed"
        self._display.log(f"worker {flaky} killed (SIGKILL) at {senders.rows:,} rows")
        await self._until_appended(START_AGAIN_AT)
        applied = await self._in_transaction(AppliedTable(flaky).count_rows)
        self._pollers[flaky].note_restart(applied)
        senders.allow(self._share(WAIT_AT if self._redis is None else REDIS_KILL_AT))
        self._display.log(f"worker {flaky} started again at {senders.rows:,} rows")
        await self._start_processes(flaky)
        if self._redis is not None:
            await self._interrupt_redis(self._redis)
        await self._until_appended(RESTART_AT)
        await self._until("every worker has the in-memory streams", self._has_in_memory_streams)
        await self._restart_master()
        await self._until("all rows are appended", lambda: senders.done)

    async def _interrupt_redis(self, redis: RedisProcess) -> None:
        """Kill Redis, and start it again after more rows have been appended."""
        await self._until_appended(REDIS_KILL_AT)
        redis.kill()
        self._display.log(f"Redis killed (SIGKILL) at {self._senders.rows:,} rows")
        self._senders.allow(self._share(REDIS_START_AT))
        await self._until_appended(REDIS_START_AT)
        redis.start()
        self._senders.allow(self._share(WAIT_AT))
        self._display.log(f"Redis started again at {self._senders.rows:,} rows")

    async def _restart_master(self) -> None:
        self._senders.allow(None)
        started, rows = self._scheduler.seconds(), self._senders.rows
        self._down[MASTER] = "restarting"
        await self._processes[MASTER].stop()
        self._pollers[MASTER].note_restart()
        await self._start_processes(MASTER)
        seconds = self._scheduler.seconds() - started
        self._display.log(
            f"master and PostgreSQL restarted at {rows:,} rows, down for {seconds:.1f} s"
        )

    async def _catch_up(self) -> None:
        """Wait until the workers are at the master's positions; the result lists those that stall."""
        try:
            await self._until(
                "every worker is at the master's positions",
                lambda: self._all_reachable() and not self._lagging_workers(),
            )
        except Stalled as stalled:
            self._display.log(str(stalled))

    async def _verify(self, appends: AppendSummary) -> DemoResult:
        self._display.log("comparing what was appended, what is stored and what was applied")
        workers = self._deployment.workers
        verification = Verification(self._traffic, self._senders.acknowledged, workers)
        streams = [self._catalogue[name] for name in verification.streams]

        def read(txn: Transaction) -> DemoResult:
            return DemoResult(
                appends=appends,
                streams={stream.name: verification.verify(txn, stream) for stream in streams},
                in_memory=frozenset(stream.name for stream in streams if stream.in_memory),
                counters={
                    worker.name: {
                        name: self._pollers[worker.name].counter(name) for name in COUNTERS
                    }
                    for worker in workers
                },
                out_of_order={
                    worker.name: AppliedTable(worker.name).count_out_of_order(txn)
                    for worker in workers
                },
                # Positions of the latest poll: positions of idle writers advance on their own, first
                # at the master.
                positions={
                    stream.name: {
                        name: poller.positions(stream.name)
                        for name, poller in self._pollers.items()
                    }
                    for stream in streams
                },
                lagging=self._lagging_workers(),
            )

        return await self._in_transaction(read)

    # -- waiting ------------------------------------------------------------------------

    async def _until_appended(self, share: float) -> None:
        rows = self._share(share)
        await self._until(f"{rows:,} rows are appended", lambda: self._senders.rows >= rows)

    async def _until(self, description: str, condition: Callable[[], bool]) -> None:
        """Wait for a condition.

        :param description: completes "waited until …"
        :raises Stalled: no process makes progress
        """
        previous: object = None
        since = 0.0
        while not condition():
            counts = [poller.counter("rows").total() for poller in self._pollers.values()]
            current = (self._senders.rows, counts)
            if current != previous:
                previous, since = current, self._scheduler.seconds()
            elif self._scheduler.seconds() - since > STALL_TIMEOUT_S:
                raise Stalled(seconds=STALL_TIMEOUT_S, condition=description)
            await self._poll()

    async def _poll(self) -> None:
        await self._scheduler.sleep(_POLL_INTERVAL_S)
        for name, process in self._processes.items():
            if name not in self._down:
                process.check()
        polls = [run_in_thread(self._reactor, poller.poll) for poller in self._pollers.values()]
        for poll in polls:
            await poll
        self._show_progress()

    async def _start_processes(self, *names: str) -> None:
        """Start processes, and wait until they are ready."""
        for name in names:
            self._processes[name].start()
            self._down[name] = "starting"
        for name in names:
            while not await run_in_thread(self._reactor, self._pollers[name].is_ready):
                self._processes[name].check()
                await self._poll()
            del self._down[name]

    # -- state --------------------------------------------------------------------------

    def _share(self, share: float) -> int:
        return int(share * self._rows)

    def _follows(self, worker: WorkerSpec, stream: str) -> bool:
        return worker.generation in self._catalogue[stream].generations

    def _has_in_memory_streams(self) -> bool:
        """Whether every worker has applied all facts that the restart of the master will lose."""
        for stream, last in self._senders.last_tokens().items():
            if not self._catalogue[stream].in_memory:
                continue
            for worker in self._deployment.workers:
                if self._follows(worker, stream):
                    writer = writer_label(LINEAR if worker.is_linear else MASTER)
                    position = self._pollers[worker.name].positions(stream).get(writer)
                    if position is None or position < last:
                        return False
        return True

    def _all_reachable(self) -> bool:
        return not any(poller.unreachable for poller in self._pollers.values())

    def _lagging_workers(self) -> tuple[LaggingWorker, ...]:
        """The workers whose positions differ from the master's."""
        master = self._pollers[MASTER]
        return tuple(
            LaggingWorker(stream.name, worker.name, writer, position, expected)
            for stream in self._catalogue
            for worker in self._deployment.workers
            if self._follows(worker, stream.name)
            for writer, expected in master.positions(stream.name).items()
            if (writer == writer_label(LINEAR)) is worker.is_linear
            # A worker need not know a writer that has not written yet.
            for position in [self._pollers[worker.name].positions(stream.name).get(writer) or 0]
            if position != expected
        )

    def _show_progress(self) -> None:
        by_stream = self._senders.rows_by_stream
        workers = {}
        for worker in self._deployment.workers:
            poller = self._pollers[worker.name]
            sent = sum(n for stream, n in by_stream.items() if self._follows(worker, stream))
            applied = poller.counter("rows").total()
            unreachable = "no answer" if poller.unreachable else None
            state = self._down.get(worker.name) or unreachable
            workers[worker.name] = WorkerProgress(applied, max(0, sent - applied), state)
        self._display.update(by_stream.total(), self._rows, workers)

    # -- the database -------------------------------------------------------------------

    def _create_tables(self, txn: Transaction) -> None:
        for worker in self._deployment.workers:
            AppliedTable(worker.name).create(txn)

    async def _in_transaction(self, work: Callable[[Transaction], T]) -> T:
        limits = DatabaseLimits(connections=1, idle_s=0)
        database = PostgresDatabase(self._reactor, self._deployment.dsn, "demo", limits)
        try:
            return await database.run("demo", work, isolation=Isolation.REPEATABLE_READ)
        finally:
            await database.close()

    def _client_for(self, request: AppendRequest) -> Client:
        writers = self._deployment.writers_of(request.stream)
        return self._clients[writers[request.number % len(writers)]]
