"""Curing what is wrong in our own database, by the code that processes use for it."""

from __future__ import annotations

from synrepl.core.errors import Refused
from synrepl.storage import writers
from synrepl.storage.database import Transaction
from synrepl.storage.facts import FactTable
from synrepl.storage.writers import Claim
from synrepl.tools.doctor import own_look
from synrepl.tools.doctor.own_look import OwnLook


class NoWriterToLend(Refused):
    """the sequence of stream {stream!r} cannot be used up from here: each of its writers runs, is drained or removed; a process that runs does it with its next append, or 'synrepl writers add {stream} sql' and try again"""


def apply(txn: Transaction, seen: OwnLook) -> list[str]:
    """Use sequences up that were seen to be behind, and fence writers that were seen dead.

    Safe beside running processes: a token is taken as any writer takes one, and a
    writer is fenced only when nothing of it can commit.

    :returns: what was done, for a person
    :raises NoWriterToLend: a token can be taken in nobody's name; nothing was done
    """
    done: list[str] = []
    streams = {stream.name: stream for stream in own_look.streams_of(txn)}
    for name, stream in seen.streams.items():
        if stream.out_of_step:
            FactTable(streams[name]).repair(txn, _claim(txn, name))
            highest = max(stream.highest, stream.recorded)
            done.append(f"{name}: the sequence was used up beyond {highest}")
        done += [
            f"{name}: writer {writer} was fenced off"
            for writer in stream.dead
            if writers.fence(txn, name, writer)
        ]
    return done


def _claim(txn: Transaction, stream: str) -> Claim:
    # That of plain SQL, as a rule. Not that of a process that runs: it keeps its own ledger.
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
