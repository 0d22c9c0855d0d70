"""The tables of ``synrepl status``; the fields are those of :mod:`synrepl.services.status.status`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import rich.console
from rich.table import Table
from rich.text import Text

from synrepl.cli.status.handler_tables import handler_tables
from synrepl.cli.status.partial_room_lines import partial_room_lines
from synrepl.cli.status.sending_lines import sending_lines
from synrepl.cli.terminal import cell, duration, plain_table

#: A lag of this many seconds is shown in yellow, and in red.
LATE_S, VERY_LATE_S = 1.0, 10.0


def tables(status: Mapping[str, Any]) -> rich.console.Group:
    """Render a status for a console.

    :param status: the result of :func:`.status.command.fetch_status`; fields that a process of another
        version lacks are shown as ``-``
    """
    streams: Mapping[str, Any] = status.get("streams", {})
    busy = {name: stream for name, stream in streams.items() if not _is_idle(stream)}
    idle = [name for name in streams if name not in busy]
    parts: list[rich.console.RenderableType] = [*_head(status)]
    if "role" not in status:
        return rich.console.Group(*parts)
    parts.append(Text())
    is_worker = status["role"] == "worker"
    if busy:
        parts.append(_worker_streams(busy) if is_worker else _master_streams(busy))
        parts += _open_reservations(busy)
    if idle:
        parts.append(Text(f"nothing yet in {_names(idle)}", style="dim"))
    if is_worker:
        parts += handler_tables(status)
    else:
        parts += [Text(), *_followers(status.get("followers", []))]
        parts += named_follower_tables(status.get("named_followers", []))
        parts += slow_client_lines(status.get("slow_clients", {}))
    parts += _states(status)
    parts += partial_room_lines(status.get("rooms"))
    parts += sending_lines(status.get("other_servers"))
    parts += _caches(status.get("caches", {}))
    return rich.console.Group(*parts)


def _head(status: Mapping[str, Any]) -> Iterable[Text]:
    if "role" in status:
        yield Text(
            f"{cell(status['role'])} {cell(status.get('instance_name'))}"
            f" of {cell(status.get('server_name'))}, synrepl {cell(status.get('version'))},"
            f" up {duration(status.get('uptime_s'))}",
            style="bold",
        )
    database = status.get("database")
    if isinstance(database, Mapping):
        ok = database.get("state") == "ok"
        said = f": {cell(database['error'])}" if "error" in database else ""
        yield Text(f"database {cell(database.get('state'))}{said}", style="" if ok else "red")
    if "connected" in status:
        connected = bool(status["connected"])
        yield Text("connected" if connected else "not connected", style="" if connected else "red")
    yield from _bus(status.get("bus"))
    if status.get("ready"):
        yield Text("ready", style="green")
    for reason in status.get("reasons", []):
        yield Text(f"not ready: {cell(reason)}", style="red")
    for warning in status.get("warnings", []):
        yield Text(f"warning: {cell(warning)}", style="yellow")


def _bus(bus: Any) -> Iterable[Text]:
    """The connection to Redis; empty for a process without Redis."""
    if not isinstance(bus, Mapping):
        return
    fault = bus.get("fault") or "the connection is being made"
    is_up = bool(bus.get("connected"))
    yield Text(
        f"bus on Redis at {cell(bus.get('where'))} "
        + ("is connected" if is_up else f"is not connected: {cell(fault)}"),
        style="" if is_up else "red",
    )
    counts = (("connections", "connections"), ("echoes", "echoes"), ("bad", "bad messages"))
    totals = ", ".join(f"{cell(bus.get(key))} {words}" for key, words in counts)
    yield Text(
        f"  {totals}; heard: {_pairs(bus.get('commands', {})) or 'nothing yet'}", style="dim"
    )


def _master_streams(streams: Mapping[str, Any]) -> Table:
    table = plain_table(
        "stream", "linear>", "reserved>", "trimmed>", "lag rows>", "lag>", "writers", "held by"
    )
    for name, stream in streams.items():
        table.add_row(
            Text(cell(name)),
            Text(cell(stream.get("position"))),
            Text(cell(stream.get("last_reserved"))),
            Text(_trimmed(stream)),
            *_lag(stream),
            Text(_pairs(stream.get("writers", {}))),
            Text(_names(stream.get("held_by", [])), style="red"),
        )
    return table


def _worker_streams(streams: Mapping[str, Any]) -> Table:
    table = plain_table("stream", "writer", "position>", "heard>", "recorded>", "lag rows>", "lag>")
    for name, stream in streams.items():
        head, lag = Text(cell(name)), _lag(stream)
        for writer, at in stream.get("writers", {}).items():
            places = (Text(cell(at.get(key))) for key in ("position", "heard", "recorded"))
            table.add_row(head, Text(cell(writer)), *places, *lag)
            head, lag = Text(), (Text(), Text())  # once per stream
    return table


def _open_reservations(streams: Mapping[str, Any]) -> Iterable[Text]:
    for name, stream in streams.items():
        oldest = stream.get("oldest_open_reservation")
        if isinstance(oldest, Mapping):
            yield Text(
                f"{cell(name)} has been held for {duration(oldest.get('seconds'))}"
                f" by {cell(oldest.get('writer'))}: {cell(oldest.get('describe'))}",
                style=_style(oldest.get("seconds")),
            )


def _followers(followers: Iterable[Mapping[str, Any]]) -> Iterable[Table | Text]:
    table = plain_table(
        "follower", "address", "dialect", "streams", "catching up", "queued>", "connected>"
    )
    for follower in followers:
        streams = follower.get("streams")
        table.add_row(
            Text(cell(follower.get("name"))),
            Text(cell(follower.get("address"))),
            Text(cell(follower.get("dialect"))),
            Text("all" if streams is None else _names(streams)),
            Text(_names(follower.get("catching_up", []))),
            Text(cell(follower.get("queued_lines"))),
            Text(duration(follower.get("connected_s"))),
        )
    return [table] if table.row_count else [Text("no followers", style="dim")]


def _states(status: Mapping[str, Any]) -> Iterable[Text]:
    """State relayed from other processes: syncing users and federation acknowledgements."""
    users = status.get("syncing_users")
    if isinstance(users, Mapping) and users.get("count"):
        instances = _pairs(users.get("by_instance", {}))
        yield Text(f"{cell(users['count'])} users are syncing: {instances}")
    sending = status.get("sending")
    if isinstance(sending, Mapping) and (sending.get("syncing_users") or sending.get("unsent")):
        yield Text(
            f"{cell(sending.get('syncing_users'))} users are syncing through this process,"
            f" {cell(sending.get('unsent'))} commands wait to be sent"
        )
    federation = status.get("federation")
    if isinstance(federation, Mapping):
        senders = federation.get("senders", {})
        held_by = federation.get("held_by")
        yield Text(
            f"federation is acknowledged up to {cell(federation.get('floor'))}:"
            f" {_pairs(senders)}; held by {cell(held_by)}"
            + ("" if senders.get(held_by) is not None else ", which has acknowledged nothing")
        )
        if federation.get("lost_upto") is not None:
            yield Text(
                f"federation up to {cell(federation['lost_upto'])} was dropped before"
                f" {cell(held_by)} had acknowledged it: too many facts waited",
                style="red",
            )


def _caches(caches: Mapping[str, Any]) -> Iterable[Table | Text]:
    table = plain_table(
        "cache", "entries>", "hits>", "misses>", "hit rate>", "evictions>", "invalidations>"
    )
    for name, counts in caches.get("by_name", {}).items():
        columns = ("size", "hits", "misses", "evictions", "invalidations")
        size, hits, misses, evictions, invalidations = map(counts.get, columns)
        row = (name, size, hits, misses, _hit_rate(hits, misses), evictions, invalidations)
        table.add_row(*(Text(cell(value)) for value in row))
    if table.row_count:
        yield from (Text(), table)
    if caches.get("emptied"):
        times = cell(caches["emptied"])
        yield Text(f"caches were emptied {times} times, because rows were lost", style="yellow")


def _hit_rate(hits: Any, misses: Any) -> str | None:
    if not isinstance(hits, int) or not isinstance(misses, int) or hits + misses == 0:
        return None
    return f"{hits / (hits + misses):.0%}"


def _is_idle(stream: Mapping[str, Any]) -> bool:
    """Whether nothing was ever reserved in a stream or announced for it."""
    heard = any(
        at.get("heard") for at in stream.get("writers", {}).values() if isinstance(at, dict)
    )
    return not (stream.get("last_reserved") or heard)


def _trimmed(stream: Mapping[str, Any]) -> str:
    """The token up to which a stream was trimmed, and the follower that prevents more."""
    trimmed = stream.get("trimmed")
    if not isinstance(trimmed, Mapping):
        return "-"
    follower = trimmed.get("held_by")
    return cell(trimmed.get("upto")) + (f", kept for {cell(follower)}" if follower else "")


def _lag(stream: Mapping[str, Any]) -> tuple[Text, Text]:
    seconds = stream.get("lag_seconds")
    style = _style(seconds) if stream.get("lag_rows") else ""
    return Text(cell(stream.get("lag_rows")), style), Text(duration(seconds), style)


def _style(seconds: Any) -> str:
    if not isinstance(seconds, (int, float)) or seconds < LATE_S:
        return ""
    return "red" if seconds >= VERY_LATE_S else "yellow"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{cell(name)} {cell(value)}" for name, value in sorted(values.items()))


def _names(values: Iterable[Any]) -> str:
    return ", ".join(map(cell, values))


_STYLES = {"missing": "red", "stuck": "red", "behind": "yellow"}


def named_follower_tables(
    followers: Iterable[Mapping[str, Any]],
) -> Iterable[rich.console.RenderableType]:
    """A table with a line per follower; empty without followers."""
    table = plain_table("named follower", "health", "lag rows>", "lag>", "last sign>", "lease")
    for follower in followers:
        health = cell(follower.get("health"))
        table.add_row(
            Text(cell(follower.get("name"))),
            Text(health, style=_STYLES.get(health, "")),
            Text(cell(follower.get("lag_rows"))),
            Text(duration(follower.get("lag_seconds"))),
            Text(_ago(follower.get("seen_s"))),
            Text(_lease(follower.get("lease_s"))),
        )
    return [Text(), table] if table.row_count else []


def slow_client_lines(slow_clients: Mapping[str, Any]) -> Iterable[Text]:
    """Clients that were disconnected for being slow, the latest last."""
    if slow_clients.get("count"):
        yield Text(
            f"{cell(slow_clients['count'])} slow clients were cut off, the last ones:", style="red"
        )
    for client in slow_clients.get("latest", []):
        yield Text(
            f"  {cell(client.get('name'))} at {cell(client.get('address'))},"
            f" {duration(client.get('ago_s'))} ago: {cell(client.get('queued_lines'))} lines"
            f" ({cell(client.get('queued_bytes'))} bytes) waited for it, the oldest for"
            f" {duration(client.get('waited_s'))}"
        )


def _ago(seconds: Any) -> str:
    ago = duration(seconds)
    return ago if ago == "-" else f"{ago} ago"


def _lease(seconds: Any) -> str:
    if not isinstance(seconds, (int, float)):
        return "-"
    return f"{duration(seconds)} left" if seconds > 0 else f"ended {duration(-seconds)} ago"
