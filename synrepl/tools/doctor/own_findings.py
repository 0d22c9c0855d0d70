"""Findings about synrepl's own database."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from time import time

from synrepl.core.tokens import Token
from synrepl.services.status.follower_lag import FollowerLag
from synrepl.storage.incarnations import MayBeLost
from synrepl.storage.migrations import MigrationPhase
from synrepl.storage.store import NamedFollower
from synrepl.tools.doctor.durability import unsafe_settings
from synrepl.tools.doctor.own_snapshot import AheadFollower, OwnSnapshot, StreamSnapshot, ahead
from synrepl.tools.doctor.report import Finding, Severity
from synrepl.tools.doctor.sending_findings import sending_findings
from synrepl.tools.doctor.sessions import hidden, locked_tables, old_transactions
from synrepl.tools.doctor.thresholds import Thresholds

#: The ID of findings about failovers.
FAILOVER = "failover"

#: Maximum number of losses listed per failover.
_LOSSES = 20

_USE_UP = (
    "'synrepl doctor database --fix' uses the sequence up to there;"
    " so does the next process that takes a writer's name or appends"
)


def findings(snapshot: OwnSnapshot, thresholds: Thresholds) -> list[Finding]:
    """List all findings."""
    found = [*_migrations(snapshot), *_server(snapshot), *_failovers(snapshot)]
    if snapshot.durability is not None:
        found += unsafe_settings(snapshot.durability)
    for name, stream in snapshot.streams.items():
        found += _sequence(name, stream)
        found += _dead_writers(name, stream)
        found += _held(name, stream, snapshot, thresholds)
    found += _others(snapshot, thresholds)
    found += _followers(snapshot, thresholds)
    found += _keys(snapshot, thresholds)
    found += sending_findings(snapshot.sending, thresholds, time())
    found += hidden(snapshot.sessions.values())
    found += _unreadable(snapshot)
    return found


def _unreadable(snapshot: OwnSnapshot) -> Iterator[Finding]:
    for name in snapshot.unreadable:
        yield Finding(
            "not-readable",
            Severity.UNSEEN,
            f"the user of this DSN may not read table synrepl.{name}: whether the sequence is"
            " behind it is not known",
            name,
            "GRANT SELECT ON ALL TABLES IN SCHEMA synrepl TO that user",
        )


def _migrations(snapshot: OwnSnapshot) -> Iterator[Finding]:
    for phase in MigrationPhase:
        names = [str(each) for each in snapshot.pending if each.phase is phase]
        if names:
            yield Finding(
                "migrations-pending",
                Severity.ERROR if phase is MigrationPhase.PRE else Severity.NOTE,
                f"not applied: {', '.join(names)}",
                "schema",
                f"'synrepl schema --apply {phase}'"
                + (
                    ""
                    if phase is MigrationPhase.PRE
                    else ", once no process of the version before runs"
                ),
            )


def _server(snapshot: OwnSnapshot) -> Iterator[Finding]:
    server = snapshot.server
    if server is not None and not server.is_confirmed:
        yield Finding(
            "not-confirmed",
            Severity.ERROR,
            f"this server was promoted or restored (timeline {server.timeline}, the last one that was"
            f" confirmed had {server.confirmed_timeline}): nothing is written before it is confirmed",
            "server",
            "start a master, or 'synrepl schema confirm', or SELECT synrepl.confirm()",
        )


def _failovers(snapshot: OwnSnapshot) -> Iterator[Finding]:
    for failover in snapshot.failovers:
        lost = [each for each in snapshot.lost if each.failover == failover.number]
        losses = "; ".join(map(_loss, lost[:_LOSSES]))
        more = f"; and {len(lost) - _LOSSES} more" if len(lost) > _LOSSES else ""
        yield Finding(
            FAILOVER,
            Severity.NOTE,
            f"failed over to timeline {failover.timeline}, confirmed at"
            f" {failover.confirmed_at:%Y-%m-%d %H:%M:%S} UTC by {failover.confirmed_by}:"
            f" {losses or 'nothing is known to be lost'}{more}",
            "server",
            "append what is lost again if it is still known elsewhere; with synchronous"
            " replication nothing is lost",
        )


def _loss(lost: MayBeLost) -> str:
    who = f"{lost.stream} by {lost.writer or 'all writers'}"
    upto = "" if lost.announced is None else f" up to {lost.announced}"
    notified = f" (notified: {', '.join(lost.notified)})" if lost.notified else ""
    return f"{who} may lack facts above {lost.kept}{upto}{notified}"


def _sequence(name: str, stream: StreamSnapshot) -> Iterator[Finding]:
    last = stream.seen.last
    if last < stream.highest:
        yield Finding(
            "sequence-behind",
            Severity.ERROR,
            f"the sequence gave out {last}, the table has facts up to {stream.highest}"
            f" (positions on record: {stream.recorded})",
            name,
            _USE_UP,
            fixable=True,
        )
    elif last < stream.recorded:
        yield Finding(
            "position-ahead",
            Severity.ERROR,
            f"a position on record is {stream.recorded}, the sequence gave out {last} only",
            name,
            _USE_UP,
            fixable=True,
        )


def _dead_writers(name: str, stream: StreamSnapshot) -> Iterator[Finding]:
    for writer in stream.dead_writers:
        yield Finding(
            "dead-writer",
            Severity.ERROR,
            f"writer {writer} died without good-bye and has not been fenced off: no master runs",
            name,
            "start a master; or 'synrepl doctor database --fix', which raises its epoch"
            " if nothing of it can commit any more",
            fixable=True,
        )


def _held(
    name: str, stream: StreamSnapshot, snapshot: OwnSnapshot, thresholds: Thresholds
) -> Iterator[Finding]:
    reported: set[str] = set()
    for writer, session in snapshot.holders(name):
        if writer in reported or session.age_s is None or session.age_s <= thresholds.transaction_s:
            continue
        reported.add(writer)
        yield Finding(
            "held",
            Severity.ERROR,
            f"held at {stream.seen.recorded} of {stream.seen.last} by writer {writer}:"
            f" {session.description}",
            name,
            f"SELECT pg_terminate_backend({session.pid}),"
            " which is safe: its facts were never visible",
        )


def _others(snapshot: OwnSnapshot, thresholds: Thresholds) -> Iterator[Finding]:
    """Find locked tables, and old transactions that have written to other tables than streams."""
    writers = {
        session.pid for stream in snapshot.streams for _, session in snapshot.holders(stream)
    }
    others = [one for one in snapshot.sessions.values() if one.wrote and one.pid not in writers]
    for session in snapshot.sessions.values():
        yield from locked_tables(
            session, [name for name in snapshot.streams if name in session.locked]
        )
    yield from old_transactions(others, thresholds, lambda session: ())


def _followers_ahead(snapshot: OwnSnapshot) -> Iterator[Finding]:
    found: dict[tuple[str, str], AheadFollower] = {}
    for each in ahead(snapshot):
        key = each.follower, each.stream
        if key not in found or each.position > found[key].position:
            found[key] = each
    for each in found.values():
        of = f" of writer {each.writer}" if each.writer else ""
        who = "" if each.handler is None else f" (handler {each.handler})"
        yield Finding(
            "follower-ahead",
            Severity.ERROR,
            f"follower {each.follower}{who} is at {each.position}{of}, and only {each.bound} has"
            " been given out: it takes for known what comes up to there",
            each.stream,
            f"stop that worker, 'synrepl followers reset {each.follower} {each.stream} --to TOKEN'"
            " with the last token that it surely has (or --to now), and start it again",
        )


def _followers(snapshot: OwnSnapshot, thresholds: Thresholds) -> Iterator[Finding]:
    yield from _followers_ahead(snapshot)
    for name, left in snapshot.leases.items():
        if left <= 0:
            yield Finding(
                "lease-expired",
                Severity.WARNING,
                f"the lease of follower {name} ran out {-left:.0f} s ago:"
                " what it has not acknowledged is trimmed",
                name,
                _start_or_remove(name),
            )
        elif left < thresholds.lease_s:
            yield Finding(
                "lease-ends-soon",
                Severity.NOTE,
                f"the lease of follower {name} ends in {left:.0f} s",
                name,
                "a worker that runs renews it; start it if it does not",
            )
    for follower in snapshot.followers.values():
        yield from _silent(follower, thresholds)
        if follower.lease_s is None or follower.lease_s > 0:
            for lag in snapshot.lags(follower):
                if lag.tokens > thresholds.behind:
                    yield _behind(follower.name, lag, snapshot.streams[lag.stream].seen.trimmed)


def _silent(follower: NamedFollower, thresholds: Thresholds) -> Iterator[Finding]:
    if follower.seen_s is not None and follower.seen_s > thresholds.silent_s:
        yield Finding(
            "follower-missing",
            Severity.WARNING,
            f"follower {follower.name} last said {follower.seen_s:.0f} s ago that it runs",
            follower.name,
            f"if it runs, its log says what keeps it; if not, {_start_or_remove(follower.name)}",
        )


def _behind(name: str, lag: FollowerLag, trimmed: Token) -> Finding:
    of = f" of writer {lag.writer}" if lag.writer else ""
    handlers = f"; handlers that are no further: {', '.join(lag.handlers)}" if lag.handlers else ""
    record = "" if lag.position is not None else ": it has no position on record"
    keeps = f", and keeps the stream from being trimmed beyond {trimmed}" if trimmed else ""
    return Finding(
        "follower-behind",
        Severity.WARNING,
        f"follower {name} is {lag.tokens} behind the position{of}{record}{keeps}{handlers}",
        lag.stream,
        f"see its log and 'synrepl status -c' with its configuration ({name})",
    )


def _keys(snapshot: OwnSnapshot, thresholds: Thresholds) -> Iterator[Finding]:
    age = snapshot.oldest_key_s
    if age is not None and age > thresholds.key_s:
        yield Finding(
            "keys-not-forgotten",
            Severity.WARNING,
            f"the oldest idempotency key is {age / 86400:.1f} days old: no master deletes them",
            "idempotency keys",
            "start a master",
        )


def _start_or_remove(name: str) -> str:
    command = shlex.join(("synrepl", "followers", "remove", name))
    return f"start that worker; or, if it will not come back: '{command}'"
