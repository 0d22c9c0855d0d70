"""Metrics of events of other servers, and of what a process answers these about rooms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.metrics_core import Metric

from synrepl.daemon.metric_families import counter, gauge


def inbound_metrics(status: Mapping[str, Any]) -> Iterable[Metric]:
    """Metrics of a part of the status."""
    yield counter(
        "federation_transactions",
        "Transactions of other servers, and their events, by outcome.",
        status["transactions"]["outcomes"],
        "outcome",
    )
    yield gauge(
        "federation_transactions_active",
        "Transactions of other servers that are being taken in.",
        float(status["transactions"]["active"]),
    )
    yield counter(
        "federation_edus", "EDUs of other servers, by type and outcome.", status["edus"], "outcome"
    )
    yield counter(
        "federation_events_judged",
        "Events of other servers that were judged, by outcome.",
        status["judged"],
        "outcome",
    )
    yield gauge(
        "federation_events_waiting",
        "Events of other servers that wait in memory to be judged.",
        float(status["waiting"]["events"]),
    )
    yield gauge(
        "federation_events_staged",
        "Events of other servers that are staged for the processes that judge them.",
        float(status["staged"]["events"]),
    )
    yield gauge(
        "federation_staged_seconds",
        "Time for which the first of the staged events has waited.",
        status["staged"]["oldest_s"],
    )
    yield gauge(
        "federation_events_not_fetched",
        "Missing events that no server gave.",
        float(status["failed_fetches"]),
    )
    yield gauge(
        "federation_gaps_active",
        "Rooms whose missing events are being fetched.",
        float(status["gaps"]["rooms"]),
    )
    for name, what in (("gaps", "gaps"), ("backfill", "history")):
        yield counter(
            f"federation_{name}_events",
            f"Events fetched to fill {what}, by outcome, and requests that failed, by error.",
            status[name]["outcomes"],
            "outcome",
        )
    yield counter(
        "federation_memberships",
        "Users of other servers that joined, knocked or left by this one.",
        status["memberships"],
        "membership",
    )
    yield counter(
        "federation_invites",
        "Invites of users of this server, by whether the room was known.",
        status["invites"],
        "room",
    )
    yield gauge(
        "federation_state_answers",
        "Answers with states that are being sent.",
        float(status["state_answers"]),
    )
