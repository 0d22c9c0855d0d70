"""Metrics of a master about named followers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client.metrics_core import Metric

from synrepl.daemon.metric_families import gauge
from synrepl.services.status.expected_followers import FollowerHealth


def named_follower_metrics(followers: Sequence[Mapping[str, Any]]) -> Iterable[Metric]:
    """Nothing about those that need not run, but for their lag."""
    watched = [one for one in followers if one["health"] != FollowerHealth.UNWATCHED]
    for name, health, meaning in (
        ("missing", FollowerHealth.MISSING, "1 while a follower that has to run gives no sign."),
        ("stuck", FollowerHealth.STUCK, "1 while a follower does not move and its stream does."),
    ):
        samples = [((one["name"],), float(one["health"] == health)) for one in watched]
        yield gauge(f"named_follower_{name}", meaning, ["follower"], samples)
    for name, meaning in (
        ("lag_rows", "Tokens that a named follower is behind, in its worst stream."),
        ("lag_seconds", "How long a token has not been reached by a named follower."),
    ):
        lags = [((one["name"],), one[name]) for one in followers]
        yield gauge(f"named_follower_{name}", meaning, ["follower"], lags)
