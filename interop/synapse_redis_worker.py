"""Runs a real worker of the current release that follows our writers over Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from interop import facts, metrics, polling, synapse_redis_worker_report, synrepl_processes
from interop.databases import Databases
from interop.environments import Environment
from interop.expected_rows import ExpectedLiveRows, RedisPhaseResult
from interop.releases import CURRENT
from interop.report import Section
from interop.synapse import ServerDirectory
from interop.synapse_over_redis import MAIN, Instance, Ports, over_redis
from interop.synrepl_processes import SynreplMaster
from interop.synrepl_writer import SynreplWriter
from synrepl.testing.redis import RedisTestServer

MASTER = "master"
WRITER = "writer1"

#: Our writers of each stream; other streams are written by the master only.
WRITERS: Mapping[str, Sequence[str]] = {
    "events": (MASTER, WRITER),
    # Synapse expects that writers of events write these as well.
    "backfill": (MASTER, WRITER),
    "sticky_events": (MASTER, WRITER),
    "profile_updates": (MASTER, WRITER),
    "receipts": (MASTER, WRITER),
    "device_lists": (MASTER, WRITER),
    "caches": (MASTER, WRITER),
    "to_device": (WRITER,),
    "account_data": (WRITER,),
}

#: Streams in Synapse's setting ``stream_writers``; the writers of the others follow from events.
_CONFIGURED = ("events", "receipts", "device_lists", "to_device", "account_data")

#: Streams that have another name in its position metric.
_SHOWN_AS = {
    "presence": "presence_stream",
    "push_rules": "push_rules_stream",
    "device_lists": "device_lists_stream",
    "un_partial_stated_room": "un_partial_stated_room_stream",
    "un_partial_stated_event": "un_partial_stated_event_stream",
}

#: Streams without a position metric.
_NOT_SHOWN = frozenset({"typing", "federation", "presence_federation"})

_ARRIVE_S = 30.0
_STILL_S = 1.5


def section(environment: Environment, databases: Databases, directory: Path) -> Section:
    """Run the scenario; its section of the report.

    :param directory: for configurations and logs
    """
    redis = RedisTestServer()
    try:
        return _SynapseRedisWorker(environment, databases, directory, redis).run()
    finally:
        redis.close()


class _SynapseRedisWorker:
    """The scenario: the worker, our master, our second writer, and Redis."""

    def __init__(
        self,
        environment: Environment,
        databases: Databases,
        directory: Path,
        redis: RedisTestServer,
    ) -> None:
        self._redis = redis
        settings = {
            "redis": {"port": redis.port},
            "stream_writers": {stream: list(names) for stream, names in WRITERS.items()},
        }
        self._master = SynreplMaster(directory / "ours", facts.SERVER, settings)
        self._writer = SynreplWriter(self._master, WRITER, settings)
        self._ports = {MASTER: self._master.http, WRITER: self._writer.http}
        shared = over_redis(
            redis.port,
            {MAIN: Ports(0, self._master.http, 0), WRITER: Ports(0, self._writer.http, 0)},
            {stream: WRITERS[stream] for stream in _CONFIGURED},
        )
        database = databases.arguments(databases.copy(CURRENT, "redis_worker"))
        self._home = ServerDirectory(
            environment, directory / "theirs", facts.SERVER, database, shared
        )
        self._expected = ExpectedLiveRows(CURRENT)
        self._results: list[RedisPhaseResult] = []

    def run(self) -> Section:
        """Run all phases; the section of the report."""
        with self._master, self._writer, ExitStack() as stack:
            self._append("before the worker starts", connected=False)
            worker = Instance(self._home, self._home.shared(), "real1", Ports.free())
            stack.enter_context(worker.process)
            worker.ready()
            self._all_on_redis(worker, 0)
            self._record_result(worker)
            self._append("while it follows")
            self._record_result(worker)
            positions = self._positions_received(worker)
            self._redis.restart()
            self._all_on_redis(worker, positions)
            self._append("after a restart of Redis")
            self._record_result(worker)
            self._redis.stop()
            self._append("while Redis is away", connected=False)
            self._writer.kill()
            self._redis.start()
            self._record_result(worker)
            positions = self._positions_received(worker)
            self._writer.start()
            self._all_on_redis(worker, positions)
            self._append("after our writer was killed and started")
            self._record_result(worker)
            worker.process.still_runs()
            answers = self._master.http_answers()
            log = self._home.log(worker.name)
            return synapse_redis_worker_report.section(self._results, WRITERS, answers, log)

    def _append(self, name: str, connected: bool = True) -> None:
        """Append facts to every stream, divided among its writers.

        :param connected: whether the worker is due to receive the rows live
        """
        self._expected.begin(name)
        for stream, made in facts.some(len(self._expected.phases)):
            writers = WRITERS.get(stream, (MASTER,))
            for place, writer in enumerate(writers):
                given = made[place :: len(writers)]
                tokens = map(abs, synrepl_processes.append(self._ports[writer], stream, given))
                rows = list(zip(tokens, map(len, given), strict=True))
                self._expected.appended(stream, rows)
        self._expected.end(connected)

    def _all_on_redis(self, worker: Instance, positions: int) -> None:
        """Wait until all three processes are subscribed and the worker has all streams' positions.

        The worker drops rows of a stream until it has received its POSITION on the connection.

        :param positions: number of POSITIONs that it had received before
        """
        everybody = [facts.SERVER.encode(), 3]

        def listen() -> bool:
            return self._redis.command("PUBSUB", "NUMSUB", facts.SERVER) == everybody

        polling.wait_until("all to listen on Redis", listen)
        due = positions + sum(
            len(WRITERS.get(stream, (MASTER,))) for stream in self._expected.known
        )
        polling.wait_until(
            "the worker to receive positions", lambda: self._positions_received(worker) >= due
        )
        polling.wait_until_stable(lambda: self._positions_received(worker), _STILL_S, _ARRIVE_S)

    def _positions_received(self, worker: Instance) -> int:
        """Number of POSITIONs that the worker has received."""
        text = metrics.read(worker.ports.metrics, "/_synapse/metrics")
        return metrics.counter(text, metrics.INBOUND_COMMANDS, "command")["POSITION"]

    def _record_result(self, worker: Instance) -> None:
        """Wait until the expected rows, and possibly unexpected ones, have arrived; record the result."""
        with suppress(polling.NotInTime):  # the report says what is missing
            polling.wait_until("all to arrive", lambda: self._measure(worker).well, _ARRIVE_S)
        self._results.append(
            polling.wait_until_stable(lambda: self._measure(worker), _STILL_S, _ARRIVE_S)
        )

    def _measure(self, worker: Instance) -> RedisPhaseResult:
        text = metrics.read(worker.ports.metrics, "/_synapse/metrics")
        shown = metrics.counter(text, metrics.POSITIONS, "stream_name")
        tokens = self._expected.tokens()
        return RedisPhaseResult(
            self._expected.phases[-1],
            self._expected.due(),
            metrics.counter(text, metrics.INBOUND_RDATA, "stream_name"),
            tokens,
            {stream: shown[_SHOWN_AS.get(stream, stream)] for stream in tokens.keys() - _NOT_SHOWN},
        )
