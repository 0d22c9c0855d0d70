"""Findings about a real Synapse's database. Nothing here changes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from synrepl.core.tokens import Token
from synrepl.storage.foreign.progress import ForeignProgress
from synrepl.tools.doctor.durability import unsafe_settings
from synrepl.tools.doctor.foreign_snapshot import ForeignSnapshot
from synrepl.tools.doctor.report import Finding, Severity
from synrepl.tools.doctor.sessions import hidden, locked_tables, old_transactions
from synrepl.tools.doctor.thresholds import Thresholds

_GRANT = (
    "GRANT pg_read_all_data TO that user; or USAGE on the schema and SELECT on all tables and"
    " sequences in it"
)

#: The finding that needs a second snapshot, because the position may be about to move.
BEHIND = "position-behind"


def findings(
    snapshot: ForeignSnapshot, thresholds: Thresholds, before: ForeignSnapshot | None = None
) -> list[Finding]:
    """List all findings.

    :param before: the state some seconds earlier. A position is recorded a moment after its rows
        are committed, so it counts as behind only if it was behind then, too
    """
    found = list(unsafe_settings(snapshot.durability))
    earlier = {} if before is None else _numbered_together(before)
    for names, stream in _numbered_together(snapshot).items():
        where = ", ".join(names)
        found += _sequence(where, stream)
        on_record = snapshot.release.locate(names[0]).stream.recorded is not None
        if on_record and snapshot.release.has_positions:
            found += _positions(where, stream, earlier.get(names))
    for session in snapshot.sessions.values():
        found += locked_tables(session, snapshot.locked_by(session))
    found += old_transactions(snapshot.sessions.values(), thresholds, snapshot.written_by)
    found += hidden(snapshot.sessions.values())
    for name, missing in snapshot.release.unknown.items():
        what = f"schema {snapshot.release.version} lacks {missing}: its positions are not looked at"
        cure = "follow it over the wire, and report the missing names"
        found.append(Finding("unknown-tables", Severity.UNSEEN, what, name, cure))
    for name, unreadable in snapshot.release.unreadable.items():
        what = f"the user of this DSN may not read {unreadable}: what it would show is not known"
        found.append(Finding("not-readable", Severity.UNSEEN, what, name, _GRANT))
    return found


def _numbered_together(snapshot: ForeignSnapshot) -> dict[tuple[str, ...], ForeignProgress]:
    """Streams that share a sequence, and with it their positions, as one."""
    together: dict[str, list[str]] = {}
    for name, stream in snapshot.streams.items():
        together.setdefault(stream.sequence or name, []).append(name)
    found = {}
    for names in together.values():
        first = snapshot.streams[names[0]]
        tables: dict[str, Token] = {}
        for name in names:
            for writer, token in snapshot.streams[name].tables.items():
                tables[writer] = max(token, tables.get(writer, 0))
        found[tuple(names)] = replace(first, tables=tables)
    return found


def _sequence(name: str, stream: ForeignProgress) -> Iterator[Finding]:
    if stream.last is None:
        return
    ahead = {who: at for who, at in stream.recorded.items() if at > stream.last}
    highest = max(stream.highest, *ahead.values(), 0)
    cure = f"with every process of Synapse stopped: SELECT setval('{stream.sequence}', {highest})"
    if stream.last < stream.highest:
        yield Finding(
            "sequence-behind",
            Severity.ERROR,
            f"sequence {stream.sequence} gave out {stream.last}, its tables go up to"
            f" {stream.highest}: Synapse refuses to start, or gives IDs out twice",
            name,
            cure,
        )
    elif ahead:
        positions = ", ".join(f"{who} at {at}" for who, at in sorted(ahead.items()))
        yield Finding(
            "position-ahead",
            Severity.ERROR,
            f"stream_positions has {positions}, sequence {stream.sequence} gave out {stream.last} only",
            name,
            cure,
        )


def _positions(
    name: str, stream: ForeignProgress, earlier: ForeignProgress | None
) -> Iterator[Finding]:
    if not stream.recorded:
        if stream.tables:
            yield Finding(
                "no-writer",
                Severity.WARNING,
                f"there are rows up to {stream.highest}, and no writer in stream_positions",
                name,
                "start the process that 'stream_writers' names for it, which records its position",
            )
        return
    was_behind = None if earlier is None else _behind(earlier)
    for writer, recorded in sorted(_behind(stream).items()):
        if was_behind is None or was_behind.get(writer) == recorded:
            yield Finding(
                BEHIND,
                Severity.WARNING,
                f"{writer or 'its writer'} is at {recorded} in stream_positions and has rows up to"
                f" {stream.tables[writer]}: one of its transactions is open, or it stopped in the"
                " middle",
                name,
                "snapshot again in a minute; when it stays, restart that process of Synapse",
            )


def _behind(stream: ForeignProgress) -> dict[str, Token]:
    """The recorded positions that are lower than rows of the same writer."""
    found = {}
    for writer, at in stream.tables.items():
        # Rows without a writer may be of any writer, so they count for the most advanced one.
        recorded = (
            stream.recorded.get(writer) if writer else max(stream.recorded.values(), default=None)
        )
        if recorded is not None and recorded < at:
            found[writer] = recorded
    return found
