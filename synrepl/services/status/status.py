"""The status of a process: pure functions from services to JSON-ready values.

The status page, ``synrepl status`` and the metrics are made from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from synrepl.core.tokens import Token
from synrepl.services.announcing.announcer import Announcer
from synrepl.services.announcing.position_listeners import Throughput
from synrepl.services.announcing.stream_state import StreamState
from synrepl.services.coherence.coherence import Coherence, caches_status
from synrepl.services.following.consumer import Consumer
from synrepl.services.following.delivery import Delivery
from synrepl.services.following.follower import Follower
from synrepl.services.following.follower_context import FollowerCounts
from synrepl.services.serving.federation_trim import federation_status
from synrepl.services.serving.master import FollowerState, Master
from synrepl.services.serving.user_sync import UserSyncs
from synrepl.services.status.stream_progress import (
    Lag,
    held_by,
    last_reserved,
    present_writers,
    removed_writers,
    writer_label,
)
from synrepl.services.trimmer import TrimCounts
from synrepl.services.writing.intake import Intake
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.store import NotConfirmed, OlderServer
from synrepl.streams.synapse.federation import FEDERATION


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Identifies a process in its status.

    :ivar started_at: start time in seconds, by the clock of the process
    """

    server_name: str
    instance_name: str
    version: str
    started_at: float

    def to_json(self, role: str, now: float) -> dict[str, Any]:
        """The first fields of a status."""
        return {
            "role": role,
            "server_name": self.server_name,
            "instance_name": self.instance_name,
            "version": self.version,
            "uptime_s": round(max(0.0, now - self.started_at), 3),
        }


def master_status(
    identity: ProcessIdentity,
    master: Master,
    announcer: Announcer,
    writer: StreamWriter,
    throughput: Throughput,
    intake: Intake,
    lags: Mapping[str, Lag],
    trims: Mapping[str, TrimCounts],
    coherence: Coherence,
    now: float,
) -> dict[str, Any]:
    """The status of a master.

    :param lags: the result of :meth:`.stream_progress.LagTracker.measure`
    :param trims: the trimmed streams, by name
    :param now: the time in seconds, by the clock of the process
    """
    return {
        **identity.to_json("master", now),
        "database": _database(announcer),
        "writer": {"name": writer.writer, "open": writer.is_open},
        "streams": {
            name: stream_status(state, writer, lags[name], trims.get(name, TrimCounts()))
            for name, state in announcer.states.items()
        },
        "followers": [follower_status(state, now) for state in master.followers.values()],
        "commands": dict(master.commands),
        "ignored": dict(master.ignored),
        "slow_clients": master.slow_clients.to_json(),
        "syncing_users": syncing_status(master.user_syncs),
        "federation": federation_status(master.federation_acks, _trimmed_of(announcer)),
        "close_reasons": {str(reason): count for reason, count in master.closed.items()},
        "published": _facts_and_rows(throughput),
        "appended": _facts_and_rows(intake),
        "appends": _nested(intake.outcomes),
        "caches": caches_status(coherence),
    }


def worker_status(
    identity: ProcessIdentity,
    follower: Follower,
    delivery: Delivery,
    connected: bool,
    lags: Mapping[str, Lag],
    coherence: Coherence,
    now: float,
) -> dict[str, Any]:
    """The status of a worker, with its position behind each writer that it knows of."""
    streams: dict[str, dict[str, Any]] = {
        name: {"writers": {}, "lag_rows": lag.rows, "lag_seconds": round(lag.seconds, 3)}
        for name, lag in lags.items()
    }
    own = follower.positions
    handlers = handlers_status(delivery)
    for (stream, writer), announced in follower.announced.items():
        if stream in streams:
            streams[stream]["writers"][writer_label(writer)] = {
                "position": own.get((stream, writer)),
                "heard": announced,
                "recorded": delivery.recorded.get((stream, writer)),
            }
    counts = follower.counts
    return {
        **identity.to_json("worker", now),
        "connected": connected,
        "streams": streams,
        "caches": caches_status(coherence),
        "waiting_rows": follower.waiting_rows,
        "tokens": follower.tokens.to_json(),
        "handlers": handlers,
        "failing": [one.to_json(now) for one in delivery.failures.failing.values()],
        "dead_letters": delivery.dead_letters.to_json(),
        "counts": {
            name: dict(getattr(counts, name)) for name in FollowerCounts.__dataclass_fields__
        },
    }


def stream_status(
    state: StreamState, writer: StreamWriter, lag: Lag, trim: TrimCounts
) -> dict[str, Any]:
    """The status of one stream of a master.

    ``held_by`` names the writers that hold back the linear position; see
    :func:`.stream_progress.held_by`. In ``trimmed``, ``upto`` is the last trimmed token, and
    ``held_by`` the named follower that holds the facts after it.
    """
    oldest = lag.oldest
    return {
        "position": state.linear,
        "writers": present_writers(state),
        "removed_writers": removed_writers(state),
        "last_reserved": last_reserved(state, writer),
        "lag_rows": lag.rows,
        "lag_seconds": round(lag.seconds, 3),
        "oldest_open_reservation": None
        if oldest is None
        else {**oldest._asdict(), "seconds": round(oldest.seconds, 3)},
        "held_by": list(held_by(state)) if lag.rows else [],
        "trimmed": {
            "upto": 0 if state.observation is None else state.observation.trimmed,
            "rows": trim.rows,
            "held_by": trim.held_by,
        },
    }


def syncing_status(users: UserSyncs[Any]) -> dict[str, Any]:
    """The number of syncing users; ``by_instance`` contains only the largest instances."""
    return {"count": users.count, "instances": users.instances, "by_instance": users.counts()}


def _trimmed_of(announcer: Announcer) -> Token:
    state = announcer.states.get(FEDERATION.name)
    return 0 if state is None or state.observation is None else state.observation.trimmed


def handlers_status(delivery: Delivery) -> list[dict[str, Any]]:
    """The status of each handler of a worker.

    ``started_from`` is the token after which the handler began: it got no facts up to there. It
    is None if unknown, for positions recorded before handlers had their own.
    """
    return [
        {
            "name": consumer.name,
            "view": "linear" if consumer.linear else "per_writer",
            "exactly_once": consumer.is_transactional,
            "failures": delivery.failures.total[consumer.name],
            "failing": any(name == consumer.name for name, *_ in delivery.failures.failing),
            "dead_letters": delivery.dead_letters.counts.get(consumer.name, 0),
            "catching_up": sorted(delivery.catching_up(consumer)),
            "streams": _tracks(consumer),
        }
        for consumer in delivery.consumers
    ]


def _tracks(consumer: Consumer) -> dict[str, dict[str, dict[str, Any]]]:
    streams: dict[str, dict[str, dict[str, Any]]] = {}
    for (stream, writer), tracker in sorted(consumer.trackers.items()):
        streams.setdefault(stream, {})[writer_label(writer)] = {
            "position": tracker.position,
            "recorded": tracker.recorded,
            "started_from": tracker.started_from,
        }
    return streams


def follower_status(state: FollowerState, now: float) -> dict[str, Any]:
    """The status of one connection of a master; ``streams`` is None if it follows all."""
    connection = state.connection
    dialect = connection.dialect
    return {
        "name": connection.name,
        "address": connection.address,
        "dialect": None if dialect is None else dialect.name,
        "streams": None if state.streams is None else sorted(state.streams),
        "catching_up": sorted(state.catching_up),
        "queued_lines": connection.queued_lines,
        "connected_s": round(max(0.0, now - state.since), 3),
    }


def _database(announcer: Announcer) -> dict[str, Any]:
    """``state`` is "ok", "away", or "unconfirmed" after a failover."""
    incarnation = {"incarnation": announcer.incarnation, "failovers": announcer.failovers}
    error = announcer.last_error
    if error is None:
        return {"state": "ok", **incarnation}
    state = "unconfirmed" if isinstance(error, (NotConfirmed, OlderServer)) else "away"
    return {"state": state, "error": str(error), **incarnation}


class _Counts(Protocol):
    @property
    def facts(self) -> Mapping[str, int]: ...

    @property
    def rows(self) -> Mapping[str, int]: ...


def _facts_and_rows(counts: _Counts) -> dict[str, dict[str, int]]:
    return {
        stream: {"facts": facts, "rows": counts.rows[stream]}
        for stream, facts in counts.facts.items()
    }


def _nested(counts: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (first, second), count in counts.items():
        nested.setdefault(first, {})[second] = count
    return nested
