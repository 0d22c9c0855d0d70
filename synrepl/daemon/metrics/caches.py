"""Metrics of the caches, from the member ``caches`` of a status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.metrics_core import Metric

from synrepl.daemon.metric_families import by_one, counter, gauge

_GAUGES = {
    "size": ("entries", "Number of entries in a cache."),
    "bytes": ("bytes", "Size of the entries of a cache that is bounded in bytes."),
}

_COUNTERS = {
    "hits": "Calls answered from the cache.",
    "misses": "Calls that loaded an entry.",
    "evictions": "Entries evicted to make room.",
    "expirations": "Entries that expired.",
    "invalidations": "Invalidations of a key, of a key prefix, or of the whole cache.",
}


def caches(section: Mapping[str, Any]) -> Iterable[Metric]:
    """Metrics of all caches.

    :param section: the result of :func:`synrepl.services.coherence.coherence.caches_status`
    """
    by_name: Mapping[str, Mapping[str, int]] = section["by_name"]

    def of(count: str) -> list[tuple[tuple[str], float]]:
        return [((name,), counts[count]) for name, counts in by_name.items()]

    for count, (name, meaning) in _GAUGES.items():
        yield gauge(f"cache_{name}", meaning, ["cache"], of(count))
    for count, meaning in _COUNTERS.items():
        yield counter(f"cache_{count}", meaning, ["cache"], of(count))
    yield counter(
        "cache_rows",
        "Rows of the caches stream applied, by cache name.",
        ["cache"],
        by_one(section["rows"]),
    )
    yield counter(
        "cache_rows_unknown",
        "Rows of the caches stream that name no cache of this process.",
        [],
        [((), section["unknown"])],
    )
    yield counter(
        "cache_rows_bad",
        "Rows with unusable keys, for which the whole cache was cleared.",
        [],
        [((), section["bad"])],
    )
    yield counter(
        "caches_emptied",
        "Times that caches were cleared because rows were lost.",
        [],
        [((), section["emptied"])],
    )
