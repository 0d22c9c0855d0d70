"""Prometheus metrics of a master or worker, made from its status at each scrape.

The services count in plain integers, so no label is looked up while rows flow. Each
process object has a registry of its own, so several can run in one Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from synrepl.daemon.metric_families import counter, gauge
from synrepl.daemon.metrics.federation import federation_metrics
from synrepl.daemon.metrics.listeners import command_metrics, listener_metrics, state_metrics
from synrepl.daemon.metrics.partial_rooms import partial_room_metrics
from synrepl.services.status.expected_followers import FollowerHealth


class ProcessMetrics:
    """The metrics of one master or worker.

    :param status: returns the status, as :func:`~synrepl.services.status.status.master_status`
        or :func:`~synrepl.services.status.status.worker_status` makes it
    :param responses: number of HTTP answers by (route, status)
    """

    def __init__(
        self, status: Callable[[], Mapping[str, Any]], responses: Mapping[tuple[str, int], int]
    ) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_ProcessCollector(status, responses))
        ProcessCollector(registry=self._registry)

    def render(self) -> tuple[bytes, str]:
        """All metrics in the text format, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4


class _ProcessCollector(Collector):
    def __init__(
        self, status: Callable[[], Mapping[str, Any]], responses: Mapping[tuple[str, int], int]
    ) -> None:
        self._status = status
        self._responses = responses

    def collect(self) -> Iterable[Metric]:
        status = self._status()
        names = ("role", "server_name", "instance_name", "version")
        yield InfoMetricFamily(
            "synrepl_process", "Identity of the process.", {name: status[name] for name in names}
        )
        yield gauge("uptime_seconds", "Time since the start.", status["uptime_s"])
        yield counter(
            "http_responses",
            "HTTP answers, by route and status.",
            [((route, str(code)), n) for (route, code), n in self._responses.items()],
            "route",
            "status",
        )
        yield from _streams(status["streams"])
        yield from _caches(status["caches"])
        yield from _audits(status.get("audits", {}))
        yield from _rooms(status.get("rooms"))
        yield from _bus(status.get("bus"))
        yield from federation_metrics(status.get("other_servers"))
        yield from listener_metrics(status)
        yield from state_metrics(status)
        yield from _master(status) if status["role"] == "master" else _worker(status)


def _streams(streams: Mapping[str, Any]) -> Iterable[Metric]:
    yield gauge(
        "stream_lag_rows",
        "Lag of the process in tokens: known to be issued, and not reached.",
        {name: stream["lag_rows"] for name, stream in streams.items()},
        "stream",
    )
    yield gauge(
        "stream_lag_seconds",
        "Lag of the process in time: age of the oldest known token that is not reached.",
        {name: stream["lag_seconds"] for name, stream in streams.items()},
        "stream",
    )


def _audits(counts: Mapping[str, Mapping[str, int]]) -> Iterable[Metric]:
    for name, meaning in (
        ("audited", "Entries compared with the database."),
        ("incoherent", "Stale entries for which no invalidation was in flight."),
    ):
        yield counter(f"cache_{name}", meaning, counts.get(name, {}), "cache")


def _rooms(rooms: Mapping[str, Any] | None) -> Iterable[Metric]:
    """Metrics of the room store; none without one."""
    if rooms is None:
        return
    posted = "Events posted over HTTP by outcome, and refused requests by error."
    yield counter("room_events_posted", posted, rooms["posted"], "outcome")
    refused = "Events, or batches of them, that a limit of their room refused."
    yield counter("room_events_refused", refused, rooms["refused"], "limit")
    queued = "Batches that wait to be persisted or are being persisted."
    yield gauge("room_batches_queued", queued, float(rooms["queued"]["batches"]))
    queued = "Bytes of the events of these batches."
    yield gauge("room_bytes_queued", queued, float(rooms["queued"]["bytes"]))
    yield from partial_room_metrics(rooms["partial"])


def _bus(bus: Mapping[str, Any] | None) -> Iterable[Metric]:
    """Metrics of the bus; none without Redis."""
    if bus is None:
        return
    for name, meaning in (
        ("connected", "1 if the process is connected to the bus on Redis."),
        ("name_taken", "1 if another process is on the bus under the same instance name."),
    ):
        yield gauge(f"bus_{name}", meaning, float(bus[name]))
    for name, key, meaning in (
        ("connections", "connections", "Connections made to the bus."),
        ("echoes", "echoes", "Messages received that this process had sent itself."),
        ("bad_messages", "bad", "Messages received that are not valid lines."),
        ("cut_off", "cut_off", "Connections to the bus lost because one side did not read."),
    ):
        yield counter(f"bus_{name}", meaning, bus[key])
    heard = "Commands of other processes received on the bus."
    yield counter("bus_commands_heard", heard, bus["commands"], "command")


def _master(status: Mapping[str, Any]) -> Iterable[Metric]:
    streams = status["streams"]
    yield gauge(
        "writer_position",
        "Position of a writer in a stream.",
        [
            ((name, writer), position)
            for name, stream in streams.items()
            for writer, position in stream["writers"].items()
        ],
        "stream",
        "writer",
    )
    yield gauge(
        "linear_position",
        "Linear position of a stream.",
        {name: stream["position"] for name, stream in streams.items()},
        "stream",
    )
    yield gauge(
        "stream_trimmed",
        "Last trimmed token of a stream.",
        {name: stream["trimmed"]["upto"] for name, stream in streams.items()},
        "stream",
    )
    yield counter(
        "rows_trimmed",
        "Rows trimmed because all followers had acknowledged them, or because of their age.",
        {name: stream["trimmed"]["rows"] for name, stream in streams.items()},
        "stream",
    )
    yield gauge(
        "oldest_open_reservation_seconds",
        "Time since the oldest unsettled reservation of a stream was first seen.",
        [
            ((name, oldest["writer"]), oldest["seconds"])
            for name, stream in streams.items()
            if (oldest := stream["oldest_open_reservation"]) is not None
        ],
        "stream",
        "writer",
    )
    yield gauge(
        "database_up",
        "1 if the last poll of the database succeeded.",
        float(status["database"]["state"] == "ok"),
    )
    yield gauge(
        "database_confirmed",
        "0 if the database server was promoted or restored and is not confirmed yet.",
        float(status["database"]["state"] != "unconfirmed"),
    )
    yield gauge(
        "database_incarnation",
        "Incarnation of the database server; each failover increments it.",
        status["database"]["incarnation"],
    )
    yield counter(
        "database_failovers",
        "Failovers of the database while this process ran.",
        status["database"]["failovers"],
    )
    yield gauge(
        "writer_open",
        "1 if the process holds its writer's lease.",
        [((status["writer"]["name"],), float(status["writer"]["open"]))],
        "writer",
    )
    yield from _followers(status)
    yield from _named_followers(status.get("named_followers", ()))
    yield from _appends(status)
    yield from command_metrics(status)


def _followers(status: Mapping[str, Any]) -> Iterable[Metric]:
    followers = status["followers"]
    yield gauge("followers_connected", "Connected followers.", len(followers))
    yield gauge(
        "followers_catching_up",
        "Connected followers with a stream in the catch-up lane.",
        sum(bool(follower["catching_up"]) for follower in followers),
    )
    yield gauge(
        "followers_queued_lines",
        "Lines queued for all followers together.",
        sum(follower["queued_lines"] for follower in followers),
    )
    yield counter(
        "slow_clients_cut_off",
        "Clients disconnected because they did not keep up.",
        status["slow_clients"]["count"],
    )
    yield counter(
        "commands_received", "Commands received from followers.", status["commands"], "command"
    )
    yield counter(
        "connections_closed",
        "Connections of followers closed, by reason.",
        status["close_reasons"],
        "reason",
    )


def _named_followers(followers: Sequence[Mapping[str, Any]]) -> Iterable[Metric]:
    """Health of the followers that have to run, and lag of all named followers."""
    watched = [one for one in followers if one["health"] != FollowerHealth.UNWATCHED]
    for name, health, meaning in (
        (
            "missing",
            FollowerHealth.MISSING,
            "1 if a follower that has to run has no heartbeat.",
        ),
        ("stuck", FollowerHealth.STUCK, "1 if a follower does not advance while its stream does."),
    ):
        samples = [((one["name"],), float(one["health"] == health)) for one in watched]
        yield gauge(f"named_follower_{name}", meaning, samples, "follower")
    for name, meaning in (
        ("lag_rows", "Lag of a named follower in tokens, in its worst stream."),
        ("lag_seconds", "Age of the oldest token that a named follower has not reached."),
    ):
        lags = [((one["name"],), one[name]) for one in followers]
        yield gauge(f"named_follower_{name}", meaning, lags, "follower")


def _appends(status: Mapping[str, Any]) -> Iterable[Metric]:
    for what in ("published", "appended"):
        for unit in ("facts", "rows"):
            yield counter(
                f"{unit}_{what}",
                f"{unit.capitalize()} {what}"
                + (" by all writers." if what == "published" else " over HTTP."),
                {name: counts[unit] for name, counts in status[what].items()},
                "stream",
            )
    yield counter(
        "appends",
        "Append requests over HTTP, by outcome.",
        [
            ((name, outcome), count)
            for name, outcomes in status["appends"].items()
            for outcome, count in outcomes.items()
        ],
        "stream",
        "outcome",
    )


#: Help texts of a follower's counters.
_COUNTS = {
    "rows": "Rows handled.",
    "duplicates": "Rows dropped as duplicates.",
    "gaps": "Gaps found.",
    "fetched_rows": "Rows fetched to fill gaps.",
    "bad_rows": "Rows ignored because they do not fit their stream.",
    "unknown": "Rows ignored because their stream is unknown.",
    "resets": "Times that a stream was reset.",
}


def _worker(status: Mapping[str, Any]) -> Iterable[Metric]:
    for kind, meaning in (
        ("position", "Position of this worker."),
        ("heard", "Position announced by the master, as received."),
    ):
        yield gauge(
            f"follower_{kind}",
            meaning,
            [
                ((name, writer), at[kind])
                for name, stream in status["streams"].items()
                for writer, at in stream["writers"].items()
                if at[kind] is not None
            ],
            "stream",
            "writer",
        )
    for name, counts in status["counts"].items():
        yield counter(f"follower_{name}", _COUNTS.get(name, name), counts, "stream")
    yield gauge(
        "follower_connected",
        "1 if the worker is connected to its master, or to the bus.",
        float(status["connected"]),
    )
    yield counter(
        "follower_refused_tokens",
        "Rows and positions refused because their token cannot have been issued.",
        status["tokens"]["refused"],
        "stream",
    )
    yield gauge(
        "follower_ahead",
        "Number of positions of this worker beyond the issued tokens.",
        len(status["tokens"]["ahead"]),
    )
    yield gauge(
        "follower_waiting_rows",
        "Number of rows received and not handled yet.",
        status["waiting_rows"],
    )
    yield from _handlers(status)


def _handlers(status: Mapping[str, Any]) -> Iterable[Metric]:
    """Position, failures and dead letters of each handler."""
    every = status["handlers"]
    yield counter(
        "handler_failures",
        "Failed attempts of a handler.",
        {each["name"]: each["failures"] for each in every},
        "handler",
    )
    for name, meaning in (
        ("failing", "1 if a handler fails and is retried."),
        ("catching_up", "1 if a handler catches up separately from the others."),
    ):
        yield gauge(
            f"handler_{name}",
            meaning,
            {each["name"]: float(bool(each[name])) for each in every},
            "handler",
        )
    yield gauge(
        "handler_position",
        "Position of a handler, per stream and writer.",
        [
            ((each["name"], stream, writer), at["position"])
            for each in every
            for stream, writers in each["streams"].items()
            for writer, at in writers.items()
            if at["position"] is not None
        ],
        "handler",
        "stream",
        "writer",
    )
    yield gauge(
        "dead_letters",
        "Facts that a handler failed for, stored as dead letters.",
        {each["name"]: each["dead_letters"] for each in every},
        "handler",
    )


_GAUGES = {
    "size": ("entries", "Number of entries in a cache."),
    "bytes": ("bytes", "Size of the entries of a cache that is bounded in bytes."),
}

_COUNTERS = {
    "hits": "Calls answered from the cache.",
    "misses": "Calls that loaded an entry.",
    "evictions": "Entries evicted to make room.",
    "expirations": "Entries that expired.",
    "invalidations": "Invalidations of a key, of a key prefix, or of the whole cache.",
}


def _caches(section: Mapping[str, Any]) -> Iterable[Metric]:
    """Metrics of all caches.

    :param section: the result of :func:`synrepl.services.coherence.coherence.caches_status`
    """
    by_name: Mapping[str, Mapping[str, int]] = section["by_name"]

    def of(count: str) -> Mapping[str, float]:
        return {name: counts[count] for name, counts in by_name.items()}

    for count, (name, meaning) in _GAUGES.items():
        yield gauge(f"cache_{name}", meaning, of(count), "cache")
    for count, meaning in _COUNTERS.items():
        yield counter(f"cache_{count}", meaning, of(count), "cache")
    yield counter(
        "cache_rows", "Rows of the caches stream applied, by cache name.", section["rows"], "cache"
    )
    yield counter(
        "cache_rows_unknown",
        "Rows of the caches stream that name no cache of this process.",
        section["unknown"],
    )
    yield counter(
        "cache_rows_bad",
        "Rows with unusable keys, for which the whole cache was cleared.",
        section["bad"],
    )
    yield counter(
        "caches_emptied",
        "Times that caches were cleared because rows were lost.",
        section["emptied"],
    )
