"""Examines a database, our own or a real Synapse's, and repairs our own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from synrepl.core.errors import InputError, Refused
from synrepl.storage import writers
from synrepl.storage.database import Database, Isolation, Transaction, value
from synrepl.storage.foreign.release import NotSynapse
from synrepl.storage.foreign.store import ForeignStore
from synrepl.storage.postgres.facts import FactTable
from synrepl.storage.writers import Claim
from synrepl.tools.doctor import (
    foreign_findings,
    foreign_snapshot,
    own_findings,
    own_snapshot,
)
from synrepl.tools.doctor.foreign_snapshot import ForeignSnapshot
from synrepl.tools.doctor.own_snapshot import OwnSnapshot
from synrepl.tools.doctor.report import ExaminationReport, FollowerLine, StreamLine
from synrepl.tools.doctor.thresholds import Thresholds


class NothingToExamine(InputError):
    """the database holds neither tables of synrepl nor those of a Synapse: check the DSN, or make the tables with 'synrepl schema --apply pre'"""


class NotOurs(Refused):
    """the database is a Synapse's, and nothing is ever written there: run the suggested cures by hand, and this without --fix"""


async def examine(
    database: Database,
    thresholds: Thresholds,
    fix: bool = False,
    wait: Callable[[], Awaitable[object]] | None = None,
) -> ExaminationReport:
    """Examine a database and report findings.

    :param fix: whether to repair what can be repaired first; only in synrepl's own database
    :param wait: waits some seconds before positions that are behind are examined again, because
        they may be about to move; None to examine them once
    :raises NothingToExamine: :raises NotOurs:
    """
    if await database.run("whose", _is_ours, read_only=True):
        return await _examine_own(database, thresholds, fix)
    store = ForeignStore(database)
    try:
        release = await store.release()
    except NotSynapse:
        raise NothingToExamine() from None
    if fix:
        raise NotOurs()
    seen = await store.read("doctor", lambda txn: foreign_snapshot.take_snapshot(txn, release))
    found = foreign_findings.findings(seen, thresholds)
    if wait is not None and any(each.id == foreign_findings.BEHIND for each in found):
        await wait()
        before, seen = (
            seen,
            await store.read("doctor", lambda txn: foreign_snapshot.take_snapshot(txn, release)),
        )
        found = foreign_findings.findings(seen, thresholds, before)
    whose = f"a Synapse's, schema {release.version}"
    return ExaminationReport(whose, _foreign_lines(seen), tuple(found))


async def _examine_own(database: Database, thresholds: Thresholds, fix: bool) -> ExaminationReport:
    seen, done = await _own_snapshot(database, thresholds), list[str]()
    if fix:
        done = await database.run("cure", lambda txn: repair(txn, seen))
        seen = await _own_snapshot(database, thresholds)
    found = own_findings.findings(seen, thresholds)
    return ExaminationReport(
        "synrepl's", _own_lines(seen), tuple(found), _follower_lines(seen), tuple(done)
    )


async def _own_snapshot(database: Database, thresholds: Thresholds) -> OwnSnapshot:
    return await database.run(
        "doctor",
        lambda txn: own_snapshot.take_snapshot(txn, thresholds.failover_days),
        read_only=True,
        isolation=Isolation.REPEATABLE_READ,
    )


def _is_ours(txn: Transaction) -> bool:
    return bool(value(txn, "SELECT to_regclass('synrepl._migrations') IS NOT NULL"))


def _own_lines(seen: OwnSnapshot) -> dict[str, StreamLine]:
    kept_for: dict[str, str] = {}
    lags = ((lag, one) for one in seen.followers.values() for lag in seen.lags(one))
    for lag, follower in sorted(lags, key=lambda pair: pair[0].tokens):
        if lag.tokens and (follower.lease_s or 0) > 0:
            kept_for[lag.stream] = follower.name
    return {
        name: StreamLine(
            stream.seen.last,
            stream.highest,
            stream.seen.recorded,
            {writer: state.position for writer, state in sorted(stream.seen.writers.items())},
            stream.seen.trimmed,
            kept_for.get(name),
            next(
                (f"{writer}: {session.description}" for writer, session in seen.holders(name)), None
            ),
        )
        for name, stream in seen.streams.items()
    }


def _follower_lines(seen: OwnSnapshot) -> dict[str, FollowerLine]:
    return {
        name: FollowerLine(
            max((lag.tokens for lag in seen.lags(one)), default=0), one.lease_s, one.seen_s
        )
        for name, one in seen.followers.items()
    }


def _foreign_lines(seen: ForeignSnapshot) -> dict[str, StreamLine]:
    lines = {}
    for name, stream in seen.streams.items():
        writers, holder = stream.recorded or stream.positions, seen.holder(name)
        held_by = None if holder is None else holder.description
        lines[name] = StreamLine(
            stream.last, stream.highest, None, dict(sorted(writers.items())), held_by=held_by
        )
    return lines


class NoWriterToLend(Refused):
    """the sequence of stream {stream!r} cannot be used up from here: each of its writers runs, is drained or removed; a process that runs does it with its next append, or 'synrepl writers add {stream} sql' and try again"""


def repair(txn: Transaction, seen: OwnSnapshot) -> list[str]:
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
