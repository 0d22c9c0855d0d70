"""Wires the HTTP routes of a master that has started."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from synrepl import __version__
from synrepl.daemon.assemble import MasterServices
from synrepl.daemon.http.actions import action_routes
from synrepl.daemon.http.api import master_routes, wait_route
from synrepl.daemon.http.caches import cache_routes
from synrepl.daemon.http.joins import join_routes
from synrepl.daemon.http.listener import HttpListener, connections_status
from synrepl.daemon.http.rooms import room_routes, rooms_status
from synrepl.daemon.metrics.metrics import ProcessMetrics
from synrepl.daemon.sources import SplitSource
from synrepl.services.serving.stream_updates import StreamUpdates
from synrepl.services.sources import FactSource
from synrepl.services.status.bus_status import bus_connected
from synrepl.services.status.expected_followers import followers_healthy
from synrepl.services.status.readiness import (
    READY_LAG_S,
    Readiness,
    lag_below,
    lease_is_held,
    streams_observable,
)
from synrepl.services.status.status import ProcessIdentity, master_status
from synrepl.services.status.stream_progress import LagTracker, master_progress
from synrepl.services.writing.intake import Intake
from synrepl.streams.synapse.federation import FEDERATION


def serve_master(
    services: MasterServices,
    http: HttpListener,
    ports: Sequence[Any],
    started_at: float,
    clients: Callable[[], Mapping[str, Any] | None],
    servers: Callable[[], Mapping[str, Any] | None],
) -> Callable[[], object]:
    """Answer HTTP requests for a master.

    :param ports: the ports of the replication listeners
    :param started_at: time of the start in seconds, by the scheduler
    :param clients: returns the status of the listener for Matrix clients; None without one
    :param servers: returns the status of federation; None without it
    :returns: a function to call before the master stops, which makes ``/ready`` not ready
    """
    config, scheduler, bus = services.config, services.ports.scheduler, services.bus
    announcer, writer, commands = services.announcer, services.writer, services.handler_commands
    identity = ProcessIdentity(config.server_name, config.instance_name, __version__, started_at)
    intake = Intake(services.catalogue, writer)
    watch = LagTracker(scheduler, lambda: master_progress(announcer.states, writer))
    watch.start()

    def status() -> dict[str, Any]:
        shown = master_status(
            identity,
            services.master,
            announcer,
            writer,
            services.throughput,
            intake,
            watch.measure(),
            {**services.trimmer.counts, FEDERATION.name: services.federation.trimming},
            services.ports.coherence,
            scheduler.seconds(),
        )
        return {
            **shown,
            "bus": None if bus is None else bus.status().to_json(),
            "named_followers": [report.to_json() for report in services.followers.reports()],
            "audits": services.auditor.counts,
            "http": http.status(),
            "listeners": [
                {"port": port.getHost().port, **connections_status(port.factory.connections)}
                for port in ports
            ],
            "rooms": rooms_status(services.rooms, services.partial_rooms),
            "client_api": clients(),
            "other_servers": servers(),
            "handler_commands": {"waiting": commands.waiting, "dropped": commands.dropped},
        }

    checks = [streams_observable(announcer), lease_is_held(writer), lag_below(watch, READY_LAG_S)]
    source: FactSource = services.store
    if bus is not None:
        checks.append(bus_connected(bus.status))
        source = SplitSource(bus.mirror.streams, bus.mirror.page_if_connected, services.store)
    warnings = [followers_healthy(services.followers)]
    if config.followers.required:
        checks, warnings = [*checks, *warnings], []
    if services.partial_rooms is not None:
        warnings.append(services.partial_rooms.monitor.check)
    ready = Readiness(checks, warnings)
    ready.started()
    metrics = ProcessMetrics(status, http.server.responses)
    updates = StreamUpdates(
        scheduler, services.catalogue, announcer.states, source, services.ports.log
    )
    routes = master_routes(intake, updates, ready, status, metrics.render)
    caches = cache_routes(services.ports.coherence.caches, services.auditor)
    rooms = room_routes(services.rooms)
    if services.rooms is not None:
        rooms += action_routes(services.ports.actions)
        rooms += join_routes(services.joining, services.config.server_name)
    http.started([*routes, wait_route(services.waiting), *caches, *rooms])

    def stop() -> None:
        ready.started(False)
        watch.stop()

    return stop
