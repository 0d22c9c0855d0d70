"""The report section on a real worker that follows our writers over Redis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from interop import log_tables, logs
from interop.expected_rows import RedisPhaseResult
from interop.releases import CURRENT
from interop.report import Section, Table, difference

_DESCRIPTION = f"""\
A Redis, our master and our worker that writes (`redis:` and `stream_writers` in their
configurations, embedded PostgreSQL), and a real generic_worker of {CURRENT} on a database of its own
that holds the schema of its release and nothing else. In its configuration our two processes are the
main process and another writer. Facts of every stream are appended over HTTP, a part at each writer,
in five phases. After the second phase, Redis is restarted. After the third, it is stopped, facts are
appended, our writer is killed by SIGKILL, and Redis is started: our master announces for the dead writer.
Then the writer is started again. The real worker is never restarted.

Rows that it received are read from its own metrics
(`synapse_replication_tcp_protocol_inbound_rdata_count_total`), and so is its position in each
stream (`synapse_storage_stream_current_position`). Redis stores nothing: rows that are appended while it
is down, or before the worker starts, are never due. Positions announce them: the worker reads its
database, which is empty here, or asks our master over HTTP. Its position is that of the writer that is
furthest behind; ours advance with the others when they are idle, so that is the last token of the
stream's sequence ("last token"), which another stream may share."""


def section(
    results: Sequence[RedisPhaseResult],
    writers: Mapping[str, Sequence[str]],
    answers: Counter[str],
    log: Path,
) -> Section:
    """Build the section with its tables and checks.

    :param writers: the writers of each stream; other streams are written by the master only
    :param answers: number of answers to requests for missed rows, by status
    :param log: path of the worker's log
    """
    section = Section(
        f"A real {CURRENT} worker follows our writers over Redis", _DESCRIPTION.splitlines()
    )
    last = results[-1]
    section.tables.append(("Rows and positions by stream, at the end:", _by_stream(last, writers)))
    section.tables.append(("Rows by phase:", _by_phase(results)))
    for result in results:
        name = result.phase.name
        section.check(
            f"{name}: it counted for each stream the rows that were due",
            result.due == result.counted,
            difference(result.due, result.counted),
        )
        section.check(
            f"{name}: its position in each stream is as expected",
            not result.wrong_positions,
            ", ".join(result.wrong_positions),
        )
    discarded = logs.discarded(log)
    section.check("it dropped no row that it received", not discarded, str(dict(discarded)))
    section.check(
        "it asked for missed rows over HTTP, and our master answered each time with 200",
        set(answers) == {"200"},
        str(dict(answers)),
    )
    log_tables.add_log_tables(section, CURRENT, logs.entries(log))
    return section


def _by_stream(last: RedisPhaseResult, writers: Mapping[str, Sequence[str]]) -> Table:
    headings = ("stream", "writers", "rows due", "counted", "last token", "position")
    rows = [
        (
            stream,
            ", ".join(writers.get(stream, ("master",))),
            last.due[stream],
            last.counted[stream],
            token,
            last.positions.get(stream, "not shown"),
        )
        for stream, token in last.tokens.items()
    ]
    return Table(headings, rows)


def _by_phase(results: Sequence[RedisPhaseResult]) -> Table:
    rows = []
    due = counted = 0
    for result in results:
        phase = result.phase
        new = result.due.total() - due, result.counted.total() - counted
        rows.append((phase.name, phase.facts, sum(map(phase.rows, phase.appended)), *new))
        due, counted = result.due.total(), result.counted.total()
    return Table(("appended", "facts", "rows", "due", "counted"), rows)
