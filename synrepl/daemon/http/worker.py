"""Wires the HTTP routes of a worker that has started."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from synrepl import __version__
from synrepl.daemon.assemble import WorkerServices
from synrepl.daemon.http.actions import action_routes
from synrepl.daemon.http.api import append_route, common_routes, memory_routes, wait_route
from synrepl.daemon.http.caches import cache_routes
from synrepl.daemon.http.joins import join_routes
from synrepl.daemon.http.listener import HttpListener
from synrepl.daemon.http.rooms import room_routes, rooms_status
from synrepl.daemon.metrics.metrics import ProcessMetrics
from synrepl.services.following.possible_tokens import none_refused, not_ahead
from synrepl.services.status.bus_status import bus_connected, check_instance_name
from synrepl.services.status.database_health import DatabaseHealth
from synrepl.services.status.readiness import (
    READY_LAG_S,
    Readiness,
    handlers_succeed,
    is_connected,
    lag_below,
    lease_is_held,
)
from synrepl.services.status.status import ProcessIdentity, worker_status
from synrepl.services.status.stream_progress import LagTracker, worker_progress
from synrepl.services.writing.intake import Intake
from synrepl.storage.store import FactStore


def serve_worker(
    worker: WorkerServices,
    store: FactStore | None,
    http: HttpListener,
    databases: Sequence[DatabaseHealth],
    started_at: float,
    clients: Callable[[], Mapping[str, Any] | None],
    servers: Callable[[], Mapping[str, Any] | None],
) -> Callable[[], object]:
    """Answer HTTP requests for a worker.

    :param store: the store of its own streams; None without a database
    :param databases: health of the databases that it reads or writes
    :param started_at: time of the start in seconds, by the scheduler
    :param clients: returns the status of the listener for Matrix clients; None without one
    :param servers: returns the status of federation; None without it
    :returns: a function to call before the worker stops, which makes ``/ready`` not ready
    """
    config, scheduler, bus, writer = (
        worker.config,
        worker.ports.scheduler,
        worker.bus,
        worker.writer,
    )
    follower, delivery = worker.follower, worker.delivery
    identity = ProcessIdentity(config.server_name, config.instance_name, __version__, started_at)
    watch = LagTracker(scheduler, lambda: worker_progress(follower.positions, follower.announced))
    watch.start()

    def status() -> dict[str, Any]:
        shown = worker_status(
            identity,
            follower,
            delivery,
            worker.is_connected,
            watch.measure(),
            worker.ports.coherence,
            scheduler.seconds(),
        )
        shown["bus"] = None if bus is None else bus.status().to_json()
        shown["http"] = http.status()
        shown["rooms"] = rooms_status(worker.rooms, worker.partial_rooms)
        shown["client_api"] = clients()
        shown["other_servers"] = servers()
        shown |= worker.commands.status()
        if writer is not None:
            shown["writer"] = {"name": writer.writer, "open": writer.is_open}
        if worker.auditor is not None:
            shown["audits"] = worker.auditor.counts
        return shown

    checks = [
        *(each.check for each in databases),
        lag_below(watch, READY_LAG_S),
        handlers_succeed(delivery.failures),
        not_ahead(follower.tokens),
    ]
    if bus is None:
        where = f"{config.master.host}:{config.master.port}"
        checks.append(is_connected(lambda: worker.is_connected, where))
    else:
        checks.append(bus_connected(bus.status))
    if writer is not None:
        checks.append(lease_is_held(writer))
    warnings = [none_refused(follower.tokens, scheduler.seconds)]
    if worker.partial_rooms is not None:
        warnings.append(worker.partial_rooms.monitor.check)
    ready = Readiness(checks, warnings)
    ready.started()
    metrics = ProcessMetrics(status, http.server.responses)
    routes = common_routes(ready, status, metrics.render)
    if writer is not None:
        check = (lambda: None) if bus is None else partial(check_instance_name, bus.status)
        routes.append(append_route(Intake(worker.catalogue, writer, check)))
    if store is not None:
        own = (worker.own_streams, worker.own_writer.states, store)
        routes += memory_routes(scheduler, *own, worker.ports.log)
    caches = cache_routes(worker.ports.coherence.caches, worker.auditor)
    rooms = room_routes(worker.rooms)
    if worker.rooms is not None:
        rooms += action_routes(worker.ports.actions)
        rooms += join_routes(worker.joining, worker.config.server_name)
    http.started([*routes, wait_route(worker.waiting), *caches, *rooms])

    def stop() -> None:
        ready.started(False)
        watch.stop()

    return stop
