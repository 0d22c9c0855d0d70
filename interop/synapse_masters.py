"""Runs our worker on a real master of each release over TCP, while clients make requests."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from interop import polling, row_log
from interop.databases import Databases
from interop.environments import Environment
from interop.matrix_client import Server
from interop.recorder import RawRow, Recorder
from interop.releases import Release
from interop.report import Section, Table, answers_table
from interop.row_log import LoggedRow
from interop.synapse import ServerDirectory, SynapseMain
from interop.synrepl_processes import SynreplWorker
from interop.traffic import Traffic

T = TypeVar("T")

_DESCRIPTION = """\
A real main process of {release} on a database of its own. Our worker (`synrepl worker`,
`master.foreign: true`, `dialect: {dialect}`, `starting: now`, catch-up over HTTP, no database)
follows it, and so does a raw recorder: a socket that keeps every line, without code of synrepl.
Both are connected, and nothing is in progress, before clients make any request; {rounds} requests are made in
{seconds:.0f} s. Then the rows that our worker's handler was given are compared with the RDATA lines
of the recording, by stream: their number, and one by one (token and every cell), in order."""

#: Counters of our worker that have to stay 0.
_ODD = ("bad_rows", "unknown", "resets", "fetched_rows", "duplicates")

_ROUNDS = 400
_QUIET_S = 2.0
_LONGEST_S = 60.0

_SERVER = "master.example"


@dataclass(frozen=True, slots=True)
class MasterResult:
    """The rows that were recorded and handled since the first request, and the worker's status."""

    seconds: float
    answers: Counter[tuple[str, int]]
    recorded: Mapping[str, list[RawRow]]
    handled: Mapping[str, list[LoggedRow]]
    status: Mapping[str, Any]
    exit_status: int


def section(
    release: Release,
    environment: Environment,
    databases: Databases,
    directory: Path,
    seed: int = 1,
) -> Section:
    """Run the scenario with one release; its section of the report.

    :param seed: of the clients' random requests
    """
    found = _run(release, environment, databases, directory, seed)
    dialect = _dialect(release)
    story = _DESCRIPTION.format(
        release=release, dialect=dialect, rounds=_ROUNDS, seconds=found.seconds
    )
    section = Section(f"Our worker follows a real {release} master", story.splitlines())
    _report(section, found)
    return section


def _run(
    release: Release, environment: Environment, databases: Databases, directory: Path, seed: int
) -> MasterResult:
    database = databases.copy(release, f"{release.name}_main")
    server_directory = ServerDirectory(
        environment, directory, _SERVER, databases.arguments(database)
    )
    main = SynapseMain(server_directory)
    log = directory / "rows.jsonl"
    with main.process:
        main.ready()
        worker = SynreplWorker(
            directory / "ours",
            _SERVER,
            _dialect(release),
            main.replication,
            main.http,
            [
                {
                    "class": "interop.row_log:RowLog",
                    "config": {"path": str(log), "generation": str(release.generation)},
                }
            ],
        )
        recorder = Recorder(main.replication, release.asks_by_token, directory / "recording.jsonl")
        with worker.process, recorder:
            _both_follow(worker, recorder)
            before = recorder.count(), _counted(log)
            server = Server(main.client, _SERVER)
            begun = time.monotonic()
            Traffic(server, seed, _ROUNDS).run()
            seconds = time.monotonic() - begun
            recorded, handled = _all_arrived(recorder, log, *before)
            status = worker.status()
            exit_status = worker.process.stop()
        main.process.still_runs()
    return MasterResult(seconds, server.answers, recorded, handled, status, exit_status)


def _dialect(release: Release) -> str:
    """The dialect in our worker's configuration; it detects the newer ones by itself."""
    return "legacy" if release.asks_by_token else "auto"


def _both_follow(worker: SynreplWorker, recorder: Recorder) -> None:
    """Wait until both have the position of every stream, and nothing more arrives."""

    def results() -> tuple[bool, int, int, int]:
        status = worker.status()
        rows = recorder.count().total()
        return bool(status["connected"]), len(status["streams"]), recorder.positions, rows

    polling.wait_until("our worker's HTTP listener", worker.status)
    polling.wait_until("both to receive positions", lambda: all(results()[:3]))
    polling.wait_until_stable(results, 2.0, _LONGEST_S)


def _all_arrived(
    recorder: Recorder, log: Path, recorded_before: Counter[str], handled_before: Counter[str]
) -> tuple[dict[str, list[RawRow]], dict[str, list[LoggedRow]]]:
    """Wait for a quiet moment at which our worker has as many rows as the recorder.

    :returns: the rows of both at that moment, or at the timeout if there is none
    """

    def both() -> tuple[dict[str, list[RawRow]], dict[str, list[LoggedRow]]]:
        recorded = _since(recorder.rows(), recorded_before)
        return recorded, _since(row_log.read(log), handled_before)

    def equal() -> tuple[dict[str, list[RawRow]], dict[str, list[LoggedRow]]] | None:
        polling.wait_until_stable(lambda: (recorder.count(), _counted(log)), _QUIET_S, _LONGEST_S)
        recorded, handled = both()
        return (recorded, handled) if _lengths(recorded) == _lengths(handled) else None

    try:
        return polling.wait_until("as many rows as recorded", equal)
    except polling.NotInTime:
        return both()  # the report says what is missing


def _lengths(rows: Mapping[str, Sequence[object]]) -> dict[str, int]:
    return {stream: len(every) for stream, every in rows.items()}


def _counted(log: Path) -> Counter[str]:
    return Counter(_lengths(row_log.read(log)))


def _since(rows: Mapping[str, list[T]], before: Counter[str]) -> dict[str, list[T]]:
    new = {stream: every[before[stream] :] for stream, every in rows.items()}
    return {stream: every for stream, every in new.items() if every}


def _report(section: Section, found: MasterResult) -> None:
    streams = sorted(found.recorded.keys() | found.handled.keys())
    rows = []
    for stream in streams:
        recorded, handled = found.recorded.get(stream, []), found.handled.get(stream, [])
        same = "yes" if _same(recorded, handled) else "no"
        rows.append((stream, len(recorded), len(handled), same))
    everything = ("all", sum(row[1] for row in rows), sum(row[2] for row in rows), "")
    headings = ("stream", "rows recorded", "rows handled", "row for row")
    section.tables.append(("Rows by stream:", Table(headings, [*rows, everything])))
    section.tables.append(("What clients did, and how often:", answers_table(found.answers)))
    unequal = [f"{row[0]} {row[2]} instead of {row[1]}" for row in rows if row[1] != row[2]]
    section.check("as many rows as recorded, for each stream", not unequal, ", ".join(unequal))
    differ = [row[0] for row in rows if row[3] == "no"]
    section.check("the same rows in the same order", not differ, ", ".join(differ))
    counts = found.status["counts"]
    odd = {name: counts[name] for name in _ODD if counts[name]}
    section.check(
        "our worker met no bad row, unknown stream, reset, gap to fetch or duplicate",
        not odd,
        ", ".join(f"{name}: {value}" for name, value in odd.items()),
    )
    section.check("our worker ended with status 0", found.exit_status == 0, str(found.exit_status))


def _same(recorded: Iterable[RawRow], handled: Iterable[LoggedRow]) -> bool:
    return [(token, json.loads(row)) for token, row in recorded] == list(handled)
