"""Metrics for Prometheus, made at each scrape from the status and from plain counters.

Nothing is counted here and nothing looks up a label while rows flow. Each
process object has a registry of its own, so several can live in one Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from synrepl.daemon.metric_families import by_one, counter, gauge
from synrepl.daemon.metrics.caches import caches
from synrepl.daemon.metrics.followers import named_follower_metrics
from synrepl.daemon.metrics.handlers import handlers
from synrepl.daemon.metrics.listeners import command_metrics, listener_metrics, state_metrics


class ProcessMetrics:
    """The metrics of one master or worker.

    :param status: gives what :func:`~synrepl.services.status.status.master_status` or
        :func:`~synrepl.services.status.status.worker_status` makes
    :param responses: HTTP answers by (route, status)
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
            "synrepl_process", "Which process this is.", {name: status[name] for name in names}
        )
        yield gauge("uptime_seconds", "Since the process started.", [], [((), status["uptime_s"])])
        yield counter(
            "http_responses",
            "HTTP answers.",
            ["route", "status"],
            [((route, str(code)), n) for (route, code), n in self._responses.items()],
        )
        yield from _streams(status["streams"])
        yield from caches(status["caches"])
        yield from _audits(status.get("audits", {}))
        yield from _bus(status.get("bus"))
        yield from listener_metrics(status)
        yield from state_metrics(status)
        yield from _master(status) if status["role"] == "master" else _worker(status)


def _streams(streams: Mapping[str, Any]) -> Iterable[Metric]:
    yield gauge(
        "stream_lag_rows",
        "Tokens known to be given out and not yet reached.",
        ["stream"],
        [((name,), stream["lag_rows"]) for name, stream in streams.items()],
    )
    yield gauge(
        "stream_lag_seconds",
        "How long a token that was known then has not been reached.",
        ["stream"],
        [((name,), stream["lag_seconds"]) for name, stream in streams.items()],
    )


def _audits(counts: Mapping[str, Mapping[str, int]]) -> Iterable[Metric]:
    for name, meaning in (
        ("audited", "Entries that were compared with what they should hold."),
        ("incoherent", "Entries that were stale, and no invalidation was on its way."),
    ):
        yield counter(f"cache_{name}", meaning, ["cache"], by_one(counts.get(name, {})))


def _bus(bus: Mapping[str, Any] | None) -> Iterable[Metric]:
    """Nothing, where processes hear each other over TCP alone."""
    if bus is None:
        return
    for name, meaning in (
        ("standing", "1 while the bus on Redis can be heard and spoken to."),
        ("name_taken", "1 when another process is on the bus under this one's name."),
    ):
        yield gauge(f"bus_{name}", meaning, [], [((), float(bus[name]))])
    for name, key, meaning in (
        ("connections", "connections", "Times that the bus was connected to."),
        ("echoes", "echoes", "Messages heard that were this process's own."),
        ("bad_messages", "bad", "Messages heard that were no lines."),
        ("cut_off", "cut_off", "Times that the bus was lost because one side did not read."),
    ):
        yield counter(f"bus_{name}", meaning, [], [((), bus[key])])
    heard = "Commands of others that were heard on the bus."
    yield counter("bus_commands_heard", heard, ["command"], by_one(bus["commands"]))


def _master(status: Mapping[str, Any]) -> Iterable[Metric]:
    streams = status["streams"]
    yield gauge(
        "writer_position",
        "Per-writer position of a stream.",
        ["stream", "writer"],
        [
            ((name, writer), position)
            for name, stream in streams.items()
            for writer, position in stream["writers"].items()
        ],
    )
    yield gauge(
        "linear_position",
        "Linear position of a stream.",
        ["stream"],
        [((name,), stream["position"]) for name, stream in streams.items()],
    )
    yield gauge(
        "stream_trimmed",
        "The last token of a stream that is gone.",
        ["stream"],
        [((name,), stream["trimmed"]["upto"]) for name, stream in streams.items()],
    )
    yield counter(
        "rows_trimmed",
        "Rows deleted for everybody had dealt with them, or they were too old.",
        ["stream"],
        [((name,), stream["trimmed"]["rows"]) for name, stream in streams.items()],
    )
    yield gauge(
        "oldest_open_reservation_seconds",
        "Since the oldest unsettled reservation of a stream was seen.",
        ["stream", "writer"],
        [
            ((name, oldest["writer"]), oldest["seconds"])
            for name, stream in streams.items()
            if (oldest := stream["oldest_open_reservation"]) is not None
        ],
    )
    yield gauge(
        "database_up",
        "1 when the last look at the database went well.",
        [],
        [((), float(status["database"]["state"] == "ok"))],
    )
    yield gauge(
        "database_confirmed",
        "0 when the database's server was promoted or restored and is not confirmed.",
        [],
        [((), float(status["database"]["state"] != "unconfirmed"))],
    )
    yield gauge(
        "database_incarnation",
        "Number of the database's server: one more after each failover.",
        [],
        [((), status["database"]["incarnation"])],
    )
    yield counter(
        "database_failovers",
        "Times that another server of the database took over while this process ran.",
        [],
        [((), status["database"]["failovers"])],
    )
    yield gauge(
        "writer_open",
        "1 while the process holds its writer's name.",
        ["writer"],
        [((status["writer"]["name"],), float(status["writer"]["open"]))],
    )
    yield from _followers(status)
    yield from named_follower_metrics(status.get("named_followers", ()))
    yield from _appends(status)
    yield from command_metrics(status)


def _followers(status: Mapping[str, Any]) -> Iterable[Metric]:
    followers = status["followers"]
    yield gauge("followers_connected", "Connections.", [], [((), len(followers))])
    yield gauge(
        "followers_catching_up",
        "Connections with a stream in the catch-up lane.",
        [],
        [((), sum(bool(follower["catching_up"]) for follower in followers))],
    )
    yield gauge(
        "followers_queued_lines",
        "Lines that wait for followers to read, all together.",
        [],
        [((), sum(follower["queued_lines"] for follower in followers))],
    )
    yield counter(
        "slow_clients_cut_off",
        "Clients that were cut off because they did not read.",
        [],
        [((), status["slow_clients"]["count"])],
    )
    yield counter(
        "commands_received", "Commands of followers.", ["command"], by_one(status["commands"])
    )
    yield counter(
        "connections_closed",
        "Connections that ended, by reason.",
        ["reason"],
        by_one(status["close_reasons"]),
    )


def _appends(status: Mapping[str, Any]) -> Iterable[Metric]:
    for what in ("published", "appended"):
        for unit in ("facts", "rows"):
            yield counter(
                f"{unit}_{what}",
                f"{unit.capitalize()} {what}"
                + (" by all writers." if what == "published" else " over HTTP."),
                ["stream"],
                [((name,), counts[unit]) for name, counts in status[what].items()],
            )
    yield counter(
        "appends",
        "Requests to append over HTTP, by outcome.",
        ["stream", "outcome"],
        [
            ((name, outcome), count)
            for name, outcomes in status["appends"].items()
            for outcome, count in outcomes.items()
        ],
    )


#: Names and meanings of what a follower counts.
_COUNTS = {
    "rows": "Rows dealt with.",
    "duplicates": "Rows dropped as known already.",
    "gaps": "Gaps found.",
    "fetched_rows": "Rows fetched to fill gaps.",
    "bad_rows": "Rows ignored, for they are none of their stream.",
    "unknown": "Rows ignored, for their stream is not known.",
    "resets": "Times a stream was started again.",
}


def _worker(status: Mapping[str, Any]) -> Iterable[Metric]:
    for kind, meaning in (("position", "Own position."), ("heard", "Heard of the master's.")):
        yield gauge(
            f"follower_{kind}",
            meaning,
            ["stream", "writer"],
            [
                ((name, writer), at[kind])
                for name, stream in status["streams"].items()
                for writer, at in stream["writers"].items()
                if at[kind] is not None
            ],
        )
    for name, counts in status["counts"].items():
        yield counter(f"follower_{name}", _COUNTS.get(name, name), ["stream"], by_one(counts))
    yield gauge(
        "follower_connected", "1 with a connection.", [], [((), float(status["connected"]))]
    )
    yield counter(
        "follower_refused_tokens",
        "Rows and positions refused, for their token cannot have been given out.",
        ["stream"],
        by_one(status["tokens"]["refused"]),
    )
    yield gauge(
        "follower_ahead",
        "Positions of this worker beyond what has been given out.",
        [],
        [((), len(status["tokens"]["ahead"]))],
    )
    yield gauge("follower_waiting_rows", "Rows not dealt with.", [], [((), status["waiting_rows"])])
    yield from handlers(status)
