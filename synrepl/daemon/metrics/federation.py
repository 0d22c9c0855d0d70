"""Metrics of what a process has to do with other servers. No label is a server: there may be any number of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.metrics_core import Metric

from synrepl.daemon.metric_families import counter, gauge
from synrepl.daemon.metrics.federation_inbound import inbound_metrics
from synrepl.daemon.metrics.federation_sending import sending_metrics


def federation_metrics(status: Mapping[str, Any] | None) -> Iterable[Metric]:
    """Metrics of a part of the status; none without federation."""
    if status is None:
        return
    yield counter(
        "federation_requests",
        "Requests to other servers, by outcome.",
        status["requests"],
        "outcome",
    )
    yield gauge(
        "federation_destinations_failing",
        "Servers that have failed, and are left alone for a while.",
        float(status["failing"]),
    )
    yield counter(
        "federation_key_documents",
        "Documents with keys of servers that were fetched, and attempts that failed.",
        status["keys"],
        "outcome",
    )
    yield counter(
        "federation_events",
        "Events of other servers whose signatures were verified, and those of them that were dropped.",
        status["events"],
        "outcome",
    )
    answers = status["answers"]
    yield counter("federation_answer_bytes", "Bytes of answers of other servers.", answers["bytes"])
    yield gauge(
        "federation_spooled_bytes",
        "Bytes of answers of other servers that are in files now.",
        float(answers["spooled"]),
    )
    if status["joins"] is not None:
        yield gauge(
            "federation_joins_running",
            "Joins of rooms that run in this process.",
            float(len(status["joins"]["running"])),
        )
        yield counter(
            "federation_joins",
            "Joins of rooms that ended in this process, by outcome.",
            status["joins"]["outcomes"],
            "outcome",
        )
    if status["inbound"] is not None:
        yield from inbound_metrics(status["inbound"])
    if status["sending"] is not None:
        yield from sending_metrics(status["sending"])
    listener = status["listener"]
    if listener is None:
        return
    yield counter(
        "federation_requests_answered",
        "Requests of other servers, by the status of the answer.",
        listener["answered"],
        "status",
    )
    yield counter(
        "federation_requests_unverified",
        "Requests of other servers whose signatures do not verify.",
        listener["unverified"],
    )
    yield counter(
        "federation_requests_rate_limited",
        "Requests of other servers refused by a rate limit.",
        listener["rate_limited"],
        "limit",
    )
    if listener["certificate"] is not None:
        yield gauge(
            "federation_certificate_expires",
            "Time at which the certificate of the listener expires, in seconds since 1970.",
            listener["certificate"]["expires_at"],
        )
