"""Metrics of what a process sends to other servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.metrics_core import Metric

from synrepl.daemon.metric_families import counter, gauge


def sending_metrics(status: Mapping[str, Any]) -> Iterable[Metric]:
    """Metrics of a part of the status."""
    yield gauge(
        "federation_partitions",
        "Partitions of destinations that this process sends to, and those that it should and does not.",
        {"owned": status["partitions"], "missing": status["missing_partitions"]},
        "state",
    )
    yield gauge(
        "federation_destinations",
        "Destinations that are sent to now, that wait for their turn, and that are away.",
        {name: status[name] for name in ("sending", "waiting", "away")},
        "state",
    )
    yield gauge(
        "federation_pending",
        "Events and EDUs in memory that wait for their destinations.",
        {"events": status["pending_events"], "edus": status["pending_edus"]},
        "kind",
    )
    yield gauge(
        "federation_oldest_seconds",
        "Time for which a destination that is not away has waited for something.",
        status["oldest_s"],
    )
    yield counter(
        "federation_events_passed_on", "Events that were passed to queues.", status["passed_on"]
    )
    yield counter(
        "federation_sent",
        "Events and EDUs that were delivered, and events that destinations refused.",
        status["sent"],
        "kind",
    )
    yield counter(
        "federation_transactions_sent",
        "Transactions by what came of them.",
        status["transactions"],
        "outcome",
    )
    yield counter(
        "federation_edus_made",
        "EDUs by type, before they are multiplied by destinations; and those that were dropped.",
        status["edus"],
        "type",
    )
    yield counter(
        "federation_queue_rows",
        "Rows of destinations that were written.",
        status["rows_written"],
    )
