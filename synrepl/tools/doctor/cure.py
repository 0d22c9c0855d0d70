"""Repairs synrepl's own database with the code that its processes use."""

from __future__ import annotations

from synrepl.core.errors import Refused
from synrepl.storage import writers
from synrepl.storage.database import Transaction
from synrepl.storage.postgres.facts import FactTable
from synrepl.storage.writers import Claim
from synrepl.tools.doctor import own_snapshot
from synrepl.tools.doctor.own_snapshot import OwnSnapshot


class NoWriterToLend(Refused):
    """the sequence of stream {stream!r} cannot be used up from here: each of its writers runs, is drained or removed; a process that runs does it with its next append, or 'synrepl writers add {stream} sql' and try again"""


def apply(txn: Transaction, seen: OwnSnapshot) -> list[str]:
    """Advance sequences that are behind, and fence dead writers.

    Safe beside running processes: a token is taken as any writer takes one, and a
    writer is fenced only when none of its transactions can still commit.

    :returns: sentences about the repairs, for a person
    :raises NoWriterToLend: no writer is free to take a token; nothing was changed
    """
    done: list[str] = []
    streams = {stream.name: stream for stream in own_snapshot.streams_of(txn)}
    for name, stream in seen.streams.items():
        if stream.is_sequence_behind:
            FactTable(streams[name]).repair(txn, _claim(txn, name))
            highest = max(stream.highest, stream.recorded)
            done.append(f"{name}: the sequence was used up beyond {highest}")
        done += [
            f"{name}: writer {writer} was fenced off"
            for writer in stream.dead_writers
            if writers.fence(txn, name, writer)
        ]
    return done


def _claim(txn: Transaction, stream: str) -> Claim:
    # Usually the writer of plain SQL; never that of a running process, which keeps its own ledger.
    txn.execute(
        "SELECT number, epoch FROM synrepl._writers"
        " WHERE stream = %s AND NOT (held OR draining OR removed)"
        " ORDER BY writer <> 'sql', number LIMIT 1",
        (stream,),
    )
    row = txn.fetchone_or_none()
    if row is None:
        raise NoWriterToLend(stream=stream)
    return Claim(int(row[0]), int(row[1]), notify=True)
