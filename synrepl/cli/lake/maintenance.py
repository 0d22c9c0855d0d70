"""Prints the report of a run of lake maintenance, as text or JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict

from synrepl.cli.conventions import print_json
from synrepl.cli.terminal import plain_table, show
from synrepl.core.errors import Refused
from synrepl.pipeline.lake.maintenance import MaintenanceReport


class NotAllLanded(Refused):
    """not all that was asked for is in the lake: {missing}. What could be landed is there, and the next run goes on from it; --settle-timeout waits longer, --stream asks for less"""


class LostInFailover(Refused):
    """the database failed over and lost rows that the lake has, which keeps them: {lost}. What came after it is landed, and this is said once; 'synrepl lake check' names these rows again"""


def check_nothing_lost(report: MaintenanceReport) -> None:
    """Check that a run met no failover in which the database lost rows of the lake.

    :raises LostInFailover: the rows
    """
    if report.lost:
        raise LostInFailover(lost="; ".join(_lost(report)))


def check_all_landed(report: MaintenanceReport, everything: bool) -> None:
    """Check that a run landed all rows that the database had at its start.

    :param everything: whether all streams were requested, including unreadable ones
    :raises NotAllLanded: the streams, and why
    """
    missing = [str(state) for _, state in sorted(report.unsettled.items())]
    if everything:
        missing += report.left_out.values()
    if missing:
        raise NotAllLanded(missing="; ".join(missing))


def print_report(report: MaintenanceReport, as_json: bool, following: bool = False) -> None:
    """Print the report of a run.

    :param following: whether this is one of many runs: print one line, and nothing if nothing was
        landed, erased or lost
    """
    if following and not _is_notable(report):
        return
    if as_json:
        print_json(_data(report))
    elif following:
        rows = [f"{_counts(report.rows)} rows"] if report.rows else []
        show(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {'; '.join([*rows, *_notes(report)])}")
    else:
        _show(report)


def _is_notable(report: MaintenanceReport) -> bool:
    erased = report.erased
    return bool(
        report.rows or report.quarantined or report.lost or erased.subjects or erased.redactions
    )


def _show(report: MaintenanceReport) -> None:
    table = plain_table("stream", "rows>", "position")
    for stream, rows in sorted(report.rows.items()):
        table.add_row(stream, f"{rows:,}", report.upto[stream])
    quiet = len(report.upto.keys() - report.rows.keys() - report.unsettled.keys())
    if not report.rows:
        show("Nothing new is settled." if report.unsettled else "Nothing new.", *_notes(report))
        return
    rest = [f"Nothing new in {_many(quiet, 'other stream')}."] if quiet else []
    show(table, *rest, *_notes(report))


def _notes(report: MaintenanceReport) -> Iterator[str]:
    erased = report.erased
    if report.quarantined:
        yield (
            "quarantined, because they do not fit their columns:"
            f" {_counts(report.quarantined)} rows"
        )
    subjects = [_many(erased.subjects, "subject")] if erased.subjects else []
    events = [_many(erased.redactions, "redacted event")] if erased.redactions else []
    if subjects or events:
        what = " and ".join(subjects + events)
        yield f"erased: {what}, in {_many(erased.rows, 'row')} of {_many(erased.files, 'file')}"
    if erased.files:
        yield "replaced files are deleted at once: who reads an older version of the tables fails"
    yield from _lost(report)
    if report.compacted_files:
        yield f"{_many(report.compacted_files, 'small file')} joined into larger ones"


def _lost(report: MaintenanceReport) -> Iterator[str]:
    for stream, found in sorted(report.lost.items()):
        for rows in found:
            yield f"stream {stream!r}: {rows}"


def _counts(rows: Mapping[str, int]) -> str:
    return ", ".join(f"{stream} {count:,}" for stream, count in sorted(rows.items()))


def _many(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _data(report: MaintenanceReport) -> dict[str, object]:
    erased = report.erased
    return {
        "rows": report.rows,
        "quarantined": report.quarantined,
        "positions": report.upto,
        "erased": {
            "files": erased.files,
            "rows": erased.rows,
            "subjects": erased.subjects,
            "redactions": erased.redactions,
        },
        "files_joined": report.compacted_files,
        "unsettled": {
            stream: {
                "settled": str(state.settled),
                "last": state.last,
                "waits_for": state.waits_for,
            }
            for stream, state in sorted(report.unsettled.items())
        },
        "left_out": report.left_out,
        "lost_in_failover": {
            stream: [asdict(rows) for rows in found]
            for stream, found in sorted(report.lost.items())
        },
    }
