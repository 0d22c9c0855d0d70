"""Soak test: eight real processes over real Redis and PostgreSQL, killed at random; nothing may be lost.

Recorded traffic is appended over HTTP, with idempotency keys, at the master and at
three workers that write. Meanwhile accidents happen (:mod:`.soak_accidents`). When
they are over and everybody has caught up, all accounts have to be equal: what was
acknowledged, what is in the tables, what each follower applied, and the positions.
"""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any, NamedTuple, TypeVar

from benchmarks.harness import Row, Scale, at_most
from benchmarks.soak_accidents import Accident, AccidentInjector, accidents, failing_over
from benchmarks.soak_audit import Accounts, audit, expected_positions, record_deviations
from benchmarks.soak_site import SoakSite
from synrepl.adapters.postgres.database import DatabaseLimits, PostgresDatabase
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.cli.demo.deployment import MASTER
from synrepl.cli.demo.progress import StatusPoller
from synrepl.cli.demo.recorder import AppliedTable
from synrepl.cli.demo.traffic import AppendRequest, Senders, Traffic
from synrepl.cli.running import run as run_under_reactor
from synrepl.cli.running import run_in_thread
from synrepl.client.client import Client
from synrepl.core.errors import Unavailable
from synrepl.daemon.catalogue import catalogue
from synrepl.daemon.config.config import load_master
from synrepl.services.sources import LINEAR
from synrepl.services.status.stream_progress import writer_label
from synrepl.storage.database import Isolation, Transaction
from synrepl.testing.redis import RedisTestServer
from synrepl.testing.standby import PrimaryAndStandby

T = TypeVar("T")

#: Rows appended per second, low enough that two cores can restart eight processes meanwhile.
RATE = 250

MINUTES = 10.0
QUICK_MINUTES = 1.0

#: Maximum seconds for which a victim is away: longer than the ping timeout (15 s).
LONGEST_S = 20.0

#: Seconds before the failover during which the standby receives nothing.
UNREPLICATED_S = 5.0

#: Seconds without any movement after which a follower counts as stuck.
STUCK_S = 90.0

_LOOK_S = 0.25

_MOST_ROWS = 50_000_000


class NotReady(Unavailable):
    """{name} has not become ready within {seconds:g} s"""


class SoakResult(NamedTuple):
    """The result of a soak test.

    :ivar facts: facts in the tables; every follower had to apply all of them
    :ivar accidents: number of accidents by kind
    :ivar again: requests that were sent more than once; ``replayed`` had been appended before
    :ivar lost: facts that were acknowledged and that the failover lost
    :ivar repeated: facts that handlers without transactions saw again
    :ivar problems: one sentence each
    """

    facts: int
    rows: int
    accidents: Counter[str]
    again: int
    replayed: int
    lost: int
    repeated: int
    problems: list[str]


class Soak:
    """Runs a soak test.

    :param redis: a running Redis, over which the processes of the site communicate
    :param servers: the site's PostgreSQL servers
    :param log: gets a line about each event
    """

    def __init__(
        self,
        reactor: Any,
        site: SoakSite,
        redis: RedisTestServer,
        servers: PrimaryAndStandby,
        log: Callable[[str], object],
    ) -> None:
        self._reactor = reactor
        self._scheduler = TwistedScheduler(reactor)
        self._site = site
        self._log = log
        self._catalogue = catalogue(load_master([site.config(MASTER)]))
        self._traffic = Traffic(self._catalogue, _MOST_ROWS)
        self._clients = {name: Client(url) for name, url in site.urls.items()}
        self._senders = Senders(self._client_for, self._traffic.requests())
        self._pollers = {name: StatusPoller(url) for name, url in site.urls.items()}
        self._processes = {name: site.process(self._scheduler, name) for name in site.urls}
        self._injector = AccidentInjector(self._scheduler, self._processes, redis, servers, log)
        self._pacing = True

    async def play(self, planned: Iterator[Accident]) -> SoakResult:
        """Run the test; all processes have ended when this returns.

        :raises SynreplError: it could not be run, or a process ended without an accident
        """
        try:
            await self._start()
            await self._append(planned)
            problems = await self._settle()
            positions = self._positions()
        finally:
            self._senders.stop()
            try:
                await self._injector.over()
            finally:
                await self._end()
                self._scheduler.stop()
        accounts = await self._with_database(self._audit)
        position_problems = await self._with_database(
            lambda txn: record_deviations(txn, self._site, positions)
        )
        acknowledged = self._senders.acknowledged
        return SoakResult(
            accounts.facts,
            accounts.rows,
            Counter(map(str, self._injector.counts.elements())),
            acknowledged.resent,
            acknowledged.replayed,
            accounts.lost,
            accounts.repeated,
            [*problems, *accounts.problems, *position_problems],
        )

    # -- phases -------------------------------------------------------------------------

    async def _start(self) -> None:
        self._processes[MASTER].start()
        await self._ready(MASTER)
        await self._with_database(self._make_tables)
        for worker in self._site.workers:
            self._processes[worker.name].start()
        for worker in self._site.workers:
            await self._ready(worker.name)
        self._log(f"{len(self._processes)} processes are ready")

    async def _append(self, planned: Iterator[Accident]) -> None:
        """Append as long as there are accidents, then finish the appends in progress."""
        self._senders.start()
        self._scheduler.spawn("pace", self._pace(self._scheduler.seconds()))
        for accident in planned:
            await self._injector.inject(accident)
            self._check()
        await self._injector.over()
        self._pacing = False
        self._senders.finish()
        while not self._senders.done:
            self._check()
            await self._scheduler.sleep(_LOOK_S)
        self._log(f"{self._senders.rows:,} rows are appended")

    async def _pace(self, begun: float) -> None:
        while self._pacing:
            self._senders.allow(int(RATE * (self._scheduler.seconds() - begun)))
            await self._scheduler.sleep(_LOOK_S)

    async def _settle(self) -> list[str]:
        """Wait until all processes have caught up; each that has not is a problem."""
        before: object = None
        since = self._scheduler.seconds()
        while True:
            self._check()
            for look in [
                run_in_thread(self._reactor, each.poll) for each in self._pollers.values()
            ]:
                await look
            behind = self._behind()
            if not behind:
                return []
            now = self._positions()
            if now != before:
                before, since = now, self._scheduler.seconds()
            elif self._scheduler.seconds() - since > STUCK_S:
                return behind
            await self._scheduler.sleep(_LOOK_S)

    async def _end(self) -> None:
        master, *workers = self._processes.values()
        for worker in workers:
            worker.terminate()
        for process in (*workers, master):
            await process.stop()

    # -- progress -----------------------------------------------------------------------

    def _check(self) -> None:
        self._injector.check()
        self._senders.check()

    def _behind(self) -> list[str]:
        """Processes that do not answer or are behind, as sentences."""
        found = [
            f"{name} does not answer" for name, each in self._pollers.items() if each.unreachable
        ]
        if found:
            return found
        positions = self._positions()
        for stream, last in self._senders.acknowledged.last_tokens.items():
            linear = positions[MASTER][stream].get(writer_label(LINEAR)) or 0
            if linear < last:
                found.append(f"{stream}: the master is at {linear} of {last}")
        for worker in self._site.workers:
            for stream, writer, token in expected_positions(worker, positions):
                reached = positions[worker.name][stream].get(writer) or 0
                if reached != token:
                    where = f"{stream}, worker {worker.name}"
                    found.append(f"{where}: it is at {reached} of {writer}, not {token}")
        return found

    def _positions(self) -> dict[str, dict[str, dict[str, int | None]]]:
        """The positions of all processes, by process, stream and writer."""
        return {
            name: {stream.name: poller.positions(stream.name) for stream in self._catalogue}
            for name, poller in self._pollers.items()
        }

    async def _ready(self, name: str) -> None:
        give_up = self._scheduler.seconds() + STUCK_S
        while not await run_in_thread(self._reactor, self._pollers[name].is_ready):
            self._processes[name].check()
            if self._scheduler.seconds() > give_up:
                raise NotReady(name=name, seconds=STUCK_S)
            await self._scheduler.sleep(_LOOK_S)

    # -- the database -------------------------------------------------------------------

    def _make_tables(self, txn: Transaction) -> None:
        for account in self._site.accounts:
            AppliedTable(account.name).create(txn)

    def _audit(self, txn: Transaction) -> Accounts:
        return audit(txn, self._site, self._catalogue, self._traffic, self._senders.acknowledged)

    async def _with_database(self, work: Callable[[Transaction], T]) -> T:
        limits = DatabaseLimits(connections=1, idle_s=0)
        database = PostgresDatabase(self._reactor, self._site.dsn, "soak", limits)
        try:
            return await database.run("soak", work, isolation=Isolation.REPEATABLE_READ)
        finally:
            await database.close()

    def _client_for(self, request: AppendRequest) -> Client:
        writers = self._site.writers_of(request.stream)
        return self._clients[writers[request.number % len(writers)]]


def soak(seed: int, minutes: float) -> SoakResult:
    """One with all eight processes, and servers of its own."""

    async def main(reactor: Any) -> SoakResult:
        clock = TwistedScheduler(reactor)
        site = SoakSite(Path(directory), dsn, redis.path)
        middle = clock.seconds() + 30 * minutes
        until = clock.seconds() + 60 * minutes
        names = list(site.urls)
        planned = takewhile(lambda _: clock.seconds() < until, accidents(seed, names, LONGEST_S))
        planned = failing_over(planned, lambda: clock.seconds() >= middle, UNREPLICATED_S)
        return await Soak(reactor, site, redis, servers, _print).play(planned)

    directory = mkdtemp(prefix="synrepl-soak-")
    data = Path(mkdtemp(prefix="synrepl-soak-data-"))
    data.chmod(0o755)
    servers = PrimaryAndStandby(data / "servers", fsync=True)
    redis = RedisTestServer()
    try:
        dsn = servers.start()
        found = run_under_reactor(main)
    finally:
        redis.close()
        servers.stop()
        shutil.rmtree(data, ignore_errors=True)
    if found.problems:
        _print(f"the logs are in {directory}")
    else:
        shutil.rmtree(directory)
    return found


def run(scale: Scale, minutes: float | None = None, seed: int | None = None) -> Iterator[Row]:
    """One row, whose figure is the number of problems."""
    minutes = minutes or (QUICK_MINUTES if scale.factor < 1 else MINUTES)
    seed = Random().randrange(10**6) if seed is None else seed
    _print(f"{minutes:g} minutes, seed {seed}")
    found = soak(seed, minutes)
    for problem in islice(found.problems, 50):
        _print(problem)
    what = ", ".join(f"{count} × {kind}" for kind, count in sorted(found.accidents.items()))
    yield Row(
        f"{minutes:g} minutes of eight processes",
        len(found.problems),
        "problems",
        at_most(0),
        detail=f"seed {seed}; {found.facts:,} facts ({found.rows:,} rows) applied by each of nine"
        f" handlers; {what}; {found.again} requests sent again, {found.replayed} of them already"
        f" appended; {found.lost:,} facts lost by the failover, and reported as lost;"
        f" {found.repeated:,} facts seen again by handlers without transactions",
        numbers={"seed": seed, "facts": found.facts, "accidents": found.accidents.total()},
    )


def _print(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)
