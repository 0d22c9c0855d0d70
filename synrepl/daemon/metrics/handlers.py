"""Metrics of a worker's handlers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.metrics_core import Metric

from synrepl.daemon.metric_families import counter, gauge


def handlers(status: Mapping[str, Any]) -> Iterable[Metric]:
    """Each handler: how far it is, whether it fails, and what it has set aside."""
    every = status["handlers"]
    yield counter(
        "handler_failures",
        "Attempts of a handler that failed.",
        ["handler"],
        [((each["name"],), each["failures"]) for each in every],
    )
    for name, meaning in (
        ("failing", "1 while a handler fails and is tried again."),
        ("catching_up", "1 while a handler is fed apart from the others."),
    ):
        yield gauge(
            f"handler_{name}",
            meaning,
            ["handler"],
            [((each["name"],), float(bool(each[name]))) for each in every],
        )
    yield gauge(
        "handler_position",
        "Position of a handler.",
        ["handler", "stream", "writer"],
        [
            ((each["name"], stream, writer), at["position"])
            for each in every
            for stream, writers in each["streams"].items()
            for writer, at in writers.items()
            if at["position"] is not None
        ],
    )
    yield gauge(
        "dead_letters",
        "Facts that a handler could not take, and that were set aside.",
        ["handler"],
        [((each["name"],), each["dead_letters"]) for each in every],
    )
