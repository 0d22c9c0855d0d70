"""The report section on real workers that follow our master."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from interop import log_tables, logs
from interop.expected_rows import ExpectedRows, PhaseResult
from interop.releases import RELEASES, Release
from interop.report import Section, Table, difference

_DESCRIPTION = """\
`synrepl init --synapse` and `synrepl master`: embedded PostgreSQL, a listener for each release (`legacy_rows:
oldest` for 1.0.0, `dialect: transitional` for 1.20.1). Real synchrotrons of 1.0.0 and 1.11.1 and real
generic_workers of 1.20.1 and 1.43.0, each on a database of its own that holds the schema of its
release and nothing else, follow it at the same time. Facts of every stream are appended with
`synrepl append`, in five phases. After the second, the master is stopped by SIGTERM and started again.
After the third, the workers are paused (SIGSTOP) while the master is killed by SIGKILL, started again
and given the facts of the fourth. The workers are never restarted. What they received is read from
their own metrics, `synapse_replication_tcp_protocol_inbound_rdata_count` by stream.

A synchrotron asks `REPLICATE <stream> <token>` for its streams, and has to get every row
above the token each time it asks: the rows due to it follow from the tokens in its log. A
generic_worker sends `REPLICATE` and has to get every row from then on. Earlier rows it reads from its
database, which is empty here; rows that it does not keep there it requests over HTTP.

A synchrotron does not follow `federation` and `pushers`. Workers of all releases keep one position for
`device_lists` and `user_signature`, and one for `account_data` and `tag_account_data`. `typing` is
kept in memory and restarts at 0 with the master: a request with a token of the previous run
is skipped, as by real masters."""

#: Connections per worker: the first, one after SIGTERM, and one after SIGKILL.
_CONNECTIONS = 3


def section(
    expected: ExpectedRows,
    results: Sequence[PhaseResult],
    followers: Mapping[str, Mapping[str, object]],
    found: Mapping[Release, Path],
) -> Section:
    """Build the section with its tables and checks.

    :param followers: the followers in ``/status`` at the end
    :param found: path of each worker's log
    """
    section = Section("Real workers follow our master", _DESCRIPTION.splitlines())
    section.tables.append(("The followers, as shown by `/status`:", _followers(followers)))
    section.tables.append(("Rows by stream, at the end:", _by_stream(expected, results[-1])))
    section.tables.append(("Rows by phase:", _by_phase(results)))
    for result in results:
        for release in RELEASES:
            due, counted = result.due[release], result.counted[release]
            section.check(
                f"{result.phase.name}: {release} counted for each stream what was due",
                due == counted,
                difference(due, counted),
            )
    for release, log in found.items():
        if release.asks_by_token:
            passed_over = expected.passed_over(release)
            claim = f"{release} asked for every row of every stored stream at least once"
            section.check(claim, not passed_over, _list(passed_over))
        else:
            discarded = logs.discarded(log)
            claim = f"{release} dropped no row that it received"
            section.check(claim, not discarded, _list(discarded))
    section.check(
        "they asked for missed rows over HTTP, and our master answered each time with 200",
        any(result.http for result in results) and all(set(s.http) <= {"200"} for s in results),
        "; ".join(f"{result.phase.name}: {dict(result.http)}" for result in results),
    )
    for release, log in found.items():
        entries = logs.entries(log)
        made = sum("Connection established" in entry.message for entry in entries)
        section.check(
            f"{release} connected {_CONNECTIONS} times by itself", made == _CONNECTIONS, f"{made}"
        )
        log_tables.add_log_tables(section, release, entries)
    return section


def _followers(followers: Mapping[str, Mapping[str, object]]) -> Table:
    rows = []
    for name, follower in sorted(followers.items()):
        streams = follower["streams"]
        what = ", ".join(streams) if isinstance(streams, list) else "all"
        rows.append((name, follower["dialect"], what))
    return Table(("worker", "dialect", "streams"), rows)


def _by_stream(expected: ExpectedRows, last: PhaseResult) -> Table:
    headings, columns = ["stream", "appended"], []
    for release in RELEASES:
        headings += [f"{release} due"]
        columns += [last.due[release]]
        if release.asks_by_token:
            headings += ["of these requested again"]
            columns += [expected.asked_again(release)]
        headings += [f"{release} counted"]
        columns += [last.counted[release]]
    rows = [
        (
            stream,
            sum(phase.rows(stream) for phase in expected.phases),
            *(column[stream] for column in columns),
        )
        for stream in expected.phases[0].appended
    ]
    return Table(headings, rows)


def _by_phase(results: Sequence[PhaseResult]) -> Table:
    headings = ["appended", "facts", "rows"]
    headings += [f"{release} {what}" for release in RELEASES for what in ("due", "counted")]
    rows = []
    before: list[int] = [0] * 2 * len(RELEASES)
    for result in results:
        phase = result.phase
        totals = [
            counts[release].total()
            for release in RELEASES
            for counts in (result.due, result.counted)
        ]
        new = [total - earlier for total, earlier in zip(totals, before, strict=True)]
        rows.append((phase.name, phase.facts, sum(map(phase.rows, phase.appended)), *new))
        before = totals
    return Table(headings, rows)


def _list(rows: Counter[str]) -> str:
    return ", ".join(f"{stream} {count}" for stream, count in sorted(rows.items()))
