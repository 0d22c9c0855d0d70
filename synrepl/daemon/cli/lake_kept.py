"""What one run of keeping a lake did, for people and for programs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict

from synrepl.core.errors import Refused
from synrepl.daemon.cli.conventions import print_json
from synrepl.daemon.cli.terminal import plain_table, show
from synrepl.pipeline.lake.keep import Kept


class NotAllLanded(Refused):
    """not all that was asked for is in the lake: {missing}. What could be landed is there, and the next run goes on from it; --settle-timeout waits longer, --stream asks for less"""


class LostInFailover(Refused):
    """the database failed over and lost rows that the lake has, which keeps them: {lost}. What came after it is landed, and this is said once; 'synrepl lake check' names these rows again"""


def check_nothing_lost(kept: Kept) -> None:
    """Make sure that a run met no failover in which the database lost rows of the lake.

    :raises LostInFailover: which
    """
    if kept.lost:
        raise LostInFailover(lost="; ".join(_lost(kept)))


def check_all_landed(kept: Kept, everything: bool) -> None:
    """Make sure that a run landed all that the database had when it began.

    :param everything: all streams were asked for, also those that cannot be read
    :raises NotAllLanded: what is missing, and why
    """
    missing = [str(each) for _, each in sorted(kept.unsettled.items())]
    if everything:
        missing += kept.left_out.values()
    if missing:
        raise NotAllLanded(missing="; ".join(missing))


def print_kept(kept: Kept, as_json: bool, following: bool = False) -> None:
    """Print it.

    :param following: many runs follow one another: a line each, and none for tidying alone
    """
    if following and not _anything(kept):
        return
    if as_json:
        print_json(_data(kept))
    elif following:
        rows = [f"{_counts(kept.rows)} rows"] if kept.rows else []
        show(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {'; '.join([*rows, *_notes(kept)])}")
    else:
        _show(kept)


def _anything(kept: Kept) -> bool:
    erased = kept.erased
    return bool(kept.rows or kept.quarantined or kept.lost or erased.subjects or erased.redactions)


def _show(kept: Kept) -> None:
    table = plain_table("stream", "rows>", "position")
    for stream, rows in sorted(kept.rows.items()):
        table.add_row(stream, f"{rows:,}", kept.upto[stream])
    quiet = len(kept.upto.keys() - kept.rows.keys() - kept.unsettled.keys())
    if not kept.rows:
        show("Nothing new is settled." if kept.unsettled else "Nothing new.", *_notes(kept))
        return
    rest = [f"Nothing new in {_many(quiet, 'other stream')}."] if quiet else []
    show(table, *rest, *_notes(kept))


def _notes(kept: Kept) -> Iterator[str]:
    erased = kept.erased
    if kept.quarantined:
        yield f"set apart, for they do not fit their columns: {_counts(kept.quarantined)} rows"
    subjects = [_many(erased.subjects, "subject")] if erased.subjects else []
    events = [_many(erased.redactions, "redacted event")] if erased.redactions else []
    if subjects or events:
        what = " and ".join(subjects + events)
        yield f"erased: {what}, in {_many(erased.rows, 'row')} of {_many(erased.files, 'file')}"
    yield from _lost(kept)
    if kept.joined:
        yield f"{_many(kept.joined, 'small file')} joined into larger ones"


def _lost(kept: Kept) -> Iterator[str]:
    for stream, found in sorted(kept.lost.items()):
        for rows in found:
            yield f"stream {stream!r}: {rows}"


def _counts(rows: Mapping[str, int]) -> str:
    return ", ".join(f"{stream} {count:,}" for stream, count in sorted(rows.items()))


def _many(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _data(kept: Kept) -> dict[str, object]:
    erased = kept.erased
    return {
        "rows": kept.rows,
        "quarantined": kept.quarantined,
        "positions": kept.upto,
        "erased": {
            "files": erased.files,
            "rows": erased.rows,
            "subjects": erased.subjects,
            "redactions": erased.redactions,
        },
        "files_joined": kept.joined,
        "unsettled": {
            stream: {
                "settled": str(each.settled),
                "last": each.last,
                "waits_for": each.waits_for,
            }
            for stream, each in sorted(kept.unsettled.items())
        },
        "left_out": kept.left_out,
        "lost_in_failover": {
            stream: [asdict(rows) for rows in found] for stream, found in sorted(kept.lost.items())
        },
    }
