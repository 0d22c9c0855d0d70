"""What is told of a real worker that follows our writers over Redis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from interop import log_tables, logs
from interop.expected_rows import RedisPhaseResult
from interop.releases import CURRENT
from interop.report import Section, Table, difference

_DESCRIPTION = f"""\
A Redis, our master and a worker of ours that writes (`redis:` and `stream_writers` in their
configurations, embedded PostgreSQL), and a real generic_worker of {CURRENT} on a database of its own
that holds the schema of its release and nothing else. In its configuration our two processes are the
main process and another writer. Facts of every stream are appended over HTTP, a part at each writer,
in five phases. After the second, Redis is restarted. After the third, it is stopped, facts are
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
    """The tables and the checks.

    :param writers: who writes what, where it is not the master alone
    :param answers: to requests for missed rows, by status
    :param log: of the worker
    """
    section = Section(
        f"A real {CURRENT} worker follows our writers over Redis", _DESCRIPTION.splitlines()
    )
    last = results[-1]
    section.tables.append(("Rows and positions by stream, at the end:", _by_stream(last, writers)))
    section.tables.append(("Rows by phase:", _by_phase(results)))
    for stand in results:
        name = stand.phase.name
        section.check(
            f"{name}: it counted for each stream the rows that were due",
            stand.due == stand.counted,
            difference(stand.due, stand.counted),
        )
        section.check(
            f"{name}: it stands in each stream where it has to",
            not stand.strayed,
            ", ".join(stand.strayed),
        )
    discarded = logs.discarded(log)
    section.check("it dropped no row that it received", not discarded, str(dict(discarded)))
    section.check(
        "it asked for missed rows over HTTP, and our master answered each time with 200",
        set(answers) == {"200"},
        str(dict(answers)),
    )
    log_tables.tell(section, CURRENT, logs.entries(log))
    return section


def _by_stream(last: RedisPhaseResult, writers: Mapping[str, Sequence[str]]) -> Table:
    headings = ("stream", "writers", "rows due", "counted", "last token", "stands at")
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
    for stand in results:
        phase = stand.phase
        new = stand.due.total() - due, stand.counted.total() - counted
        rows.append((phase.name, phase.facts, sum(map(phase.rows, phase.appended)), *new))
        due, counted = stand.due.total(), stand.counted.total()
    return Table(("appended", "facts", "rows", "due", "counted"), rows)
