"""Metrics of a landing into the lake, served on a port of their own."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from synrepl.core.errors import Unavailable
from synrepl.core.loopback import LOOPBACK
from synrepl.pipeline.lake.land.landing import LandingRound


class MetricsPortTaken(Unavailable):
    """metrics cannot be served on port {port} of this machine: {reason}; give another --metrics-port"""


class LakeMetrics:
    """The metrics of ``synrepl lake land``.

    :param port: port on loopback; None to serve no metrics
    :raises MetricsPortTaken:
    """

    def __init__(self, port: int | None) -> None:
        registry = CollectorRegistry()

        def counter(name: str, meaning: str) -> Counter:
            return Counter(f"synrepl_lake_{name}", meaning, ["stream"], registry=registry)

        def gauge(name: str, meaning: str) -> Gauge:
            return Gauge(f"synrepl_lake_{name}", meaning, ["stream"], registry=registry)

        self._rows = counter("rows", "Rows landed.")
        self._quarantined = counter(
            "quarantined_rows", "Rows quarantined because they do not fit their columns."
        )
        self._lost = counter("lost_rows", "Rows in the lake that the database lost in a failover.")
        self._position = gauge("position", "Token up to which the lake is complete.")
        self._behind = gauge(
            "behind_tokens", "Number of settled tokens that are not in the lake yet."
        )
        self._unsettled = gauge(
            "unsettled_tokens",
            "Number of issued tokens that are not known to be settled, so they are not in the lake.",
        )
        self._seconds = Gauge(
            "synrepl_lake_run_seconds", "Duration of the last run.", registry=registry
        )
        self._at = Gauge(
            "synrepl_lake_last_run_timestamp_seconds",
            "Time of the end of the last run.",
            registry=registry,
        )
        if port is not None:
            try:
                start_http_server(port, LOOPBACK, registry)
            except OSError as error:
                raise MetricsPortTaken(port=port, reason=error.strerror or error) from None

    def landed(self, landed: LandingRound) -> None:
        """Count the result of a round."""
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
        """Record the end of a run, and how long it took."""
        self._seconds.set(seconds)
        self._at.set(time.time())
