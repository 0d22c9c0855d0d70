"""Runs real workers of all releases over TCP on our master, at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from interop import facts, logs, metrics, polling, synapse_workers_report
from interop.databases import Databases
from interop.environments import Environment
from interop.expected_rows import ExpectedRows, Phase, PhaseResult
from interop.processes import free_ports
from interop.releases import RELEASES, Release
from interop.report import Section
from interop.synapse import ServerDirectory, SynapseWorker
from interop.synrepl_processes import SynreplMaster

_ARRIVE_S = 30.0
_STILL_S = 1.5


class SynapseWorkers:
    """The scenario: the workers and our master.

    :param directory: for configurations and logs
    """

    def __init__(
        self, environments: Mapping[Release, Environment], databases: Databases, directory: Path
    ) -> None:
        self._environments = environments
        self._databases = databases
        self._directory = directory
        self._ports = dict(zip(RELEASES, free_ports(len(RELEASES)), strict=True))
        listeners = [{"port": port, **release.listener} for release, port in self._ports.items()]
        self._master = SynreplMaster(directory / "master", facts.SERVER, {"listeners": listeners})
        self._run = 0
        self._workers: dict[Release, SynapseWorker] = {}
        self._expected = ExpectedRows()
        self._results: list[PhaseResult] = []

    def run(self) -> Section:
        """Run all phases; the section of the report."""
        with ExitStack() as stack:
            stack.enter_context(self._master)
            self._append("before the workers start")
            for release in RELEASES:
                stack.enter_context(self._start(release).process)
            self._wait_until_caught_up()
            self._append_live("while they follow")
            self._restart()
            self._wait_until_following()
            self._append_live("after SIGTERM and a new start")
            with self._paused():
                self._restart(kill=True)
                self._append("while they are away")
            self._wait_until_caught_up()
            self._append_live("after SIGKILL and a new start")
            followers = self._master.followers()
            for worker in self._workers.values():
                worker.process.still_runs()
        found = {
            release: worker.server_directory.log(worker.name)
            for release, worker in self._workers.items()
        }
        return synapse_workers_report.section(self._expected, self._results, followers, found)

    # -- actions ----------------------------------------------------------------------

    def _start(self, release: Release) -> SynapseWorker:
        """Start a worker on a fresh database."""
        name = release.name
        database = self._databases.copy(release, f"{name}_worker")
        server_directory = ServerDirectory(
            self._environments[release],
            self._directory / name,
            facts.SERVER,
            self._databases.arguments(database),
        )
        worker = SynapseWorker(server_directory, name, self._ports[release], self._master.http)
        self._workers[release] = worker
        return worker

    def _restart(self, kill: bool = False) -> None:
        self._master.end(kill)
        self._run += 1
        self._master.start()

    @contextmanager
    def _paused(self) -> Iterator[None]:
        for worker in self._workers.values():
            worker.process.pause()
        try:
            yield
        finally:
            for worker in self._workers.values():
                worker.process.resume()

    def _append(self, name: str) -> Phase:
        """Append facts to every stream, as a new phase."""
        phase = Phase(name, self._run)
        for stream, made in facts.some(len(self._expected.phases)):
            ids = self._master.append(stream, made)
            tokens = [abs(number) for number in ids]
            rows = [len(fact) for fact in made]
            phase.appended[stream] = list(zip(tokens, rows, strict=True))
        self._expected.phases.append(phase)
        return phase

    def _append_live(self, name: str) -> None:
        self._expected.sent_live(self._append(name))
        self._record_result()

    # -- observations -----------------------------------------------------------------

    def _wait_until_following(self) -> None:
        """Wait until all streams of all workers are live, according to the master."""
        for release, worker in self._workers.items():
            worker.ready()
            polling.wait_until(f"{worker.name} to follow", partial(self._follows, release, worker))
        for release in RELEASES:
            if release.asks_by_token:
                self._expected.diagnoses(release, self._subscriptions(release))

    def _wait_until_caught_up(self) -> None:
        self._wait_until_following()
        self._record_result()

    def _subscriptions(self, release: Release) -> dict[str, int]:
        """The tokens that a worker requested on its last connection, by stream."""
        worker = self._workers[release]
        return dict(logs.subscriptions(worker.server_directory.log(worker.name)))

    def _follows(self, release: Release, worker: SynapseWorker) -> bool:
        follower: Mapping[str, Any] | None = self._master.followers().get(worker.name)
        if follower is None or follower["dialect"] is None or follower["catching_up"]:
            return False
        streams = follower["streams"]
        return streams is None or set(streams) == set(self._subscriptions(release))

    def _record_result(self) -> None:
        """Wait until the expected rows, and possibly unexpected ones, have arrived; record the result."""
        due = {release: +rows for release, rows in self._expected.due.items()}
        with suppress(polling.NotInTime):  # the report says which are missing
            polling.wait_until("the rows to arrive", lambda: self._counted() == due, _ARRIVE_S)
        counted = polling.wait_until_stable(self._counted, _STILL_S, _ARRIVE_S)
        phase = self._expected.phases[-1]
        self._results.append(PhaseResult(phase, due, counted, self._master.http_answers()))

    def _counted(self) -> dict[Release, Counter[str]]:
        found = {}
        for release, worker in self._workers.items():
            text = metrics.read(worker.metrics, "/_synapse/metrics")
            found[release] = metrics.counter(text, metrics.INBOUND_RDATA, "stream_name")
        return found
