"""Metrics of the listeners, and of the commands and user states of a status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.metrics_core import Metric

from synrepl.daemon.metric_families import counter, gauge


def listener_metrics(status: Mapping[str, Any]) -> Iterable[Metric]:
    """Metrics of all listeners in a status."""
    http: Mapping[str, int] | None = status.get("http")
    listeners: list[tuple[str, Mapping[str, int]]] = [
        (f"replication:{each['port']}", each) for each in status.get("listeners", ())
    ]
    clients: Mapping[str, Any] | None = status.get("client_api")
    if clients is not None:
        listeners.append(("client_api", clients))
        yield gauge(
            "client_requests",
            "Requests of Matrix clients that are being answered, queued, or waiting for news.",
            {state: clients[state] for state in ("active", "queued", "waiting")},
            "state",
        )
        yield counter(
            "client_requests_answered",
            "Requests of Matrix clients, by the status of the answer.",
            clients["answered"],
            "status",
        )
        yield counter(
            "client_requests_rate_limited",
            "Requests of Matrix clients refused by a rate limit.",
            clients["rate_limited"],
            "limit",
        )
        yield counter(
            "client_plain_reads",
            "Reads of a room in one statement, and how they ended: as 'special', which a transaction read, or 'failed',"
            " where a transaction was tried instead.",
            [
                ((request, outcome), count)
                for request, ended in clients["plain_reads"].items()
                for outcome, count in ended.items()
            ],
            "request",
            "outcome",
        )
    servers = (status.get("other_servers") or {}).get("listener")
    if servers is not None:
        listeners.append(("federation", servers))
    if http is not None:
        listeners.append(("http", http))
        requests = {state: http[state] for state in ("active", "queued", "waiting")}
        yield gauge(
            "http_requests",
            "HTTP requests that are being answered, queued, or waiting for a position.",
            requests,
            "state",
        )
    for key, meaning in (
        ("connections", "Open connections of a listener."),
        ("max_connections", "Maximum number of connections of a listener."),
    ):
        samples = [((name,), each[key]) for name, each in listeners]
        yield gauge(f"listener_{key}", meaning, samples, "listener")
    for key, meaning in (
        ("displaced", "Idle connections closed to make room for others."),
        ("refused", "Connections refused because the listener was full."),
    ):
        samples = [((name,), each[key]) for name, each in listeners]
        yield counter(f"listener_{key}", meaning, samples, "listener")


def state_metrics(status: Mapping[str, Any]) -> Iterable[Metric]:
    """Metrics of the states that processes have announced: syncing users and federation."""
    users = status.get("syncing_users")
    if users is not None:
        for name, key, meaning in (
            (
                "syncing_users",
                "count",
                "Number of syncing users; (user, device) pairs count separately.",
            ),
            ("syncing_instances", "instances", "Number of instances with syncing users."),
        ):
            yield gauge(name, meaning, users[key])
    sending = status.get("sending")
    if sending is not None:
        for name, key, meaning in (
            (
                "own_syncing_users",
                "syncing_users",
                "Number of users that sync through this process.",
            ),
            ("commands_unsent", "unsent", "Number of handlers' commands that wait to be sent."),
        ):
            yield gauge(name, meaning, sending[key])
    federation = status.get("federation")
    if federation is not None:
        acked = federation["senders"]
        yield gauge(
            "federation_acknowledged",
            "Token of the federation stream that a sender has acknowledged.",
            {name: token for name, token in acked.items() if token is not None},
            "sender",
        )
        yield gauge(
            "federation_holds",
            "1 for the federation sender with the lowest acknowledged token.",
            {name: float(name == federation["held_by"]) for name in acked},
            "sender",
        )
        yield gauge(
            "federation_lost_upto",
            "Last token of the federation stream that was dropped before all senders acknowledged it.",
            federation["lost_upto"] or 0,
        )
        yield gauge(
            "federation_floor",
            "Token of the federation stream that all senders have acknowledged.",
            federation["floor"],
        )


def command_metrics(status: Mapping[str, Any]) -> Iterable[Metric]:
    """Metrics of ignored commands, and of commands that wait for handlers."""
    yield counter(
        "commands_ignored",
        "Commands of followers ignored because of a limit.",
        status["ignored"],
        "reason",
    )
    commands = status.get("handler_commands")
    if commands is not None:
        yield gauge(
            "handler_commands_waiting",
            "Number of commands that wait for handlers.",
            commands["waiting"],
        )
        yield counter(
            "handler_commands_dropped",
            "Commands dropped because a handler was too slow.",
            commands["dropped"],
        )
