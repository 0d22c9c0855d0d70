"""Progress of the streams of a real Synapse: sequences, tables and recorded positions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from synrepl.core.errors import Unavailable
from synrepl.core.tokens import Token
from synrepl.storage.database import LockNotAvailable, Transaction
from synrepl.storage.foreign.feed import WRITER_COLUMN
from synrepl.storage.foreign.paging import MAIN_PROCESS
from synrepl.storage.foreign.release import LocatedStream, Release
from synrepl.streams.synapse import SYNAPSE_STREAMS

#: Number of a table's newest rows to read: it may hold years of them.
RECENT_ROWS = 10_000

#: The same for a caller that reads every second.
NEWEST_ROWS = 1_000

#: Lock timeout in milliseconds: a caller is waiting.
_LOCK_MS = 3_000

_DOWN = frozenset(stream.name for stream in SYNAPSE_STREAMS if stream.counts_down)


class TableLocked(Unavailable):
    """table {table} could not be read within {seconds:g} s: somebody has locked it, or waits for a lock that nobody passes; 'synrepl doctor database' names who has it"""


@dataclass(frozen=True, slots=True)
class ForeignProgress:
    """The progress of one stream.

    :ivar sequence: name of its sequence; None without one
    :ivar last: the last token that the sequence gave out
    :ivar tables: by writer, the largest token among the newest rows; "" for rows that name none
    :ivar recorded: by writer, the recorded position
    """

    sequence: str | None
    last: Token | None
    tables: Mapping[str, Token]
    recorded: Mapping[str, Token]

    @property
    def highest(self) -> Token:
        """The largest token in the tables."""
        return max(self.tables.values(), default=0)

    @property
    def positions(self) -> dict[str, Token]:
        """By writer, the position of its committed rows; without rows, the recorded position.

        A position is recorded after the rows are committed, so a writer that stopped in
        between has newer rows. Rows that name no writer belong to the only one.
        """
        unnamed, named = self.tables.get("", 0), self._named
        if not self.recorded:
            if not named or unnamed > max(named.values()):
                named[MAIN_PROCESS] = max(unnamed, named.get(MAIN_PROCESS, 0))
            return named
        furthest = max(self.recorded.values())
        found = dict(self.recorded)
        for writer, token in named.items():
            # Rows of a former writer are older than all recorded positions.
            if token > found.get(writer, furthest):
                found[writer] = token
        return found

    @property
    def row_positions(self) -> dict[str, Token]:
        """By writer, the position of its rows; 0 for a recorded writer without rows.

        The recorded position may be further, by tokens without rows, or with rows in
        another stream.
        """
        if not self.recorded:
            return self.positions
        furthest = max(self.recorded.values())
        there = {
            who: at for who, at in self._named.items() if who in self.recorded or at > furthest
        }
        return dict.fromkeys(self.recorded, 0) | there

    @property
    def _named(self) -> dict[str, Token]:
        """By writer, the position of its rows; rows that name no writer belong to the only one."""
        named = {writer: token for writer, token in self.tables.items() if writer}
        if len(self.recorded) == 1:
            (only,) = self.recorded
            named[only] = max(self.tables.get("", 0), named.get(only, 0))
        return named


def observe(
    txn: Transaction, release: Release, rows: int = RECENT_ROWS
) -> dict[str, ForeignProgress]:
    """Read the progress of every stream; sequences last, so that they cannot appear behind.

    :param rows: number of a table's newest rows to read
    """
    txn.execute("SELECT set_config('lock_timeout', %s, true)", (str(_LOCK_MS),))
    tables = {name: _in_tables(txn, name, at, rows) for name, at in release.streams.items()}
    recorded = _recorded(txn, release)
    return {
        name: _progress(txn, at, tables[name], recorded) for name, at in release.streams.items()
    }


def observe_stream(txn: Transaction, release: Release, stream: str, rows: int) -> ForeignProgress:
    """Read the progress of one stream; see :func:`observe`."""
    txn.execute("SELECT set_config('lock_timeout', %s, true)", (str(_LOCK_MS),))
    at = release.streams[stream]
    return _progress(txn, at, _in_tables(txn, stream, at, rows), _recorded(txn, release))


def given_out(txn: Transaction, release: Release, streams: Iterable[str]) -> dict[str, Token]:
    """By stream with a sequence, the largest token that it can have given out.

    Without a sequence, Synapse has that token in memory, and rows that were deleted show nothing of it.
    """
    found = {}
    for stream in streams:
        seen = observe_stream(txn, release, stream, NEWEST_ROWS)
        if seen.sequence is not None:
            # Whether it was used or not: a schema change may have made it begin above older tokens.
            txn.execute(f"SELECT abs(last_value) FROM {seen.sequence}")
            last = int(txn.fetchone()[0])
            found[stream] = max(last, seen.highest, *seen.recorded.values())
    return found


def _progress(
    txn: Transaction,
    at: LocatedStream,
    tables: Mapping[str, Token],
    recorded: Mapping[str, Mapping[str, Token]],
) -> ForeignProgress:
    return ForeignProgress(
        at.stream.sequence,
        None if at.stream.sequence is None else _last(txn, at.stream.sequence),
        tables,
        recorded.get(at.stream.recorded or "", {}),
    )


def sole_writer(txn: Transaction, release: Release, stream: str) -> str | None:
    """The writer of a stream, if only one is recorded."""
    recorded = release.locate(stream).stream.recorded
    if not release.has_positions or recorded is None:
        return None
    txn.execute(
        "SELECT instance_name FROM stream_positions WHERE stream_name = %s LIMIT 2", (recorded,)
    )
    names = [str(name) for (name,) in txn.fetchall()]
    return names[0] if len(names) == 1 else None


def _in_tables(txn: Transaction, name: str, at: LocatedStream, rows: int) -> dict[str, Token]:
    down = name in _DOWN
    found: dict[str, Token] = {}
    for feed in at.stream.feeds:
        column = feed.stream_id
        writer = WRITER_COLUMN if feed.table in at.with_writer else "NULL"
        bound, order = ("< 0", "ASC") if down else ("> 0", "DESC")
        try:
            txn.execute(
                "SELECT writer, max(abs(stream_id)) FROM ("
                f"SELECT coalesce({writer}, '') AS writer, {column} AS stream_id"
                f" FROM {feed.table} WHERE {column} {bound}"
                f" ORDER BY {column} {order} LIMIT %s) AS recent GROUP BY writer",
                (rows,),
            )
        except LockNotAvailable:
            raise TableLocked(table=feed.table, seconds=_LOCK_MS / 1000) from None
        for who, token in txn.fetchall():
            found[str(who)] = max(found.get(str(who), 0), int(token))
    return found


def _recorded(txn: Transaction, release: Release) -> dict[str, dict[str, Token]]:
    found: dict[str, dict[str, Token]] = {}
    if release.has_positions:
        txn.execute("SELECT stream_name, instance_name, stream_id FROM stream_positions")
        for stream, writer, stream_id in txn.fetchall():
            found.setdefault(str(stream), {})[str(writer)] = abs(int(stream_id))
    return found


def _last(txn: Transaction, sequence: str) -> Token:
    txn.execute(f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {sequence}")
    return abs(int(txn.fetchone()[0]))
