"""What a landing tells Prometheus, on a port of its own."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from synrepl.core.errors import Unavailable
from synrepl.core.loopback import LOOPBACK
from synrepl.pipeline.lake.land.landing import LandingRound


class MetricsPortTaken(Unavailable):
    """metrics cannot be served on port {port} of this machine: {reason}; give another --metrics-port"""


class LakeMetrics:
    """Counts of one landing.

    :param port: on loopback; None when nobody asks
    :raises PortTaken:
    """

    def __init__(self, port: int | None) -> None:
        registry = CollectorRegistry()
        self._rows = Counter("synrepl_lake_rows", "Rows landed.", ["stream"], registry=registry)
        self._quarantined = Counter(
            "synrepl_lake_quarantined_rows",
            "Rows that did not fit their columns.",
            ["stream"],
            registry=registry,
        )
        self._lost = Counter(
            "synrepl_lake_lost_rows",
            "Rows of the lake that the database was found to have lost in a failover.",
            ["stream"],
            registry=registry,
        )
        self._position = Gauge(
            "synrepl_lake_position",
            "The token up to which the lake has everything.",
            ["stream"],
            registry=registry,
        )
        self._behind = Gauge(
            "synrepl_lake_behind_tokens",
            "Settled tokens that are not in the lake.",
            ["stream"],
            registry=registry,
        )
        self._unsettled = Gauge(
            "synrepl_lake_unsettled_tokens",
            "Tokens that were given out and are not proven to be settled, so not in the lake.",
            ["stream"],
            registry=registry,
        )
        self._seconds = Gauge(
            "synrepl_lake_run_seconds", "How long the last run took.", registry=registry
        )
        self._at = Gauge(
            "synrepl_lake_last_run_timestamp_seconds", "When the last run ended.", registry=registry
        )
        if port is not None:
            try:
                start_http_server(port, LOOPBACK, registry)
            except OSError as error:
                raise MetricsPortTaken(port=port, reason=error.strerror or error) from None

    def landed(self, landed: LandingRound) -> None:
        """A round is done."""
        for stream, lost in landed.lost.items():
            self._lost.labels(stream).inc(sum(each.rows for each in lost))
        for stream, upto in landed.upto.items():
            self._rows.labels(stream).inc(landed.rows[stream])
            self._quarantined.labels(stream).inc(landed.quarantined[stream])
            self._position.labels(stream).set(upto.linear)
            self._behind.labels(stream).set(landed.behind[stream])
            kept = landed.unsettled.get(stream)
            self._unsettled.labels(stream).set(
                0 if kept is None else kept.last - kept.settled.linear
            )

    def ran(self, seconds: float) -> None:
        """A run is done."""
        self._seconds.set(seconds)
        self._at.set(time.time())
