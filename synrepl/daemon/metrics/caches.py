"""Metrics of the caches, from the section ``caches`` of a status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.metrics_core import Metric

from synrepl.daemon.metric_families import by_one, counter, gauge

_GAUGES = {
    "size": ("entries", "Entries now."),
    "bytes": ("bytes", "Bytes of entries now, where bounded."),
}

_COUNTERS = {
    "hits": "Calls answered out of the cache.",
    "misses": "Loads.",
    "evictions": "Entries that went to make room.",
    "expirations": "Entries that were too old to be used.",
    "invalidations": "Invalidations of a key, of part of one, or of the whole cache.",
}


def caches(section: Mapping[str, Any]) -> Iterable[Metric]:
    """All of them.

    :param told: what :func:`synrepl.services.coherence.coherence.caches_status` makes
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
        "Rows of the caches stream applied, by name.",
        ["cache"],
        by_one(section["rows"]),
    )
    yield counter(
        "cache_rows_unknown",
        "Rows that named no cache of this process.",
        [],
        [((), section["unknown"])],
    )
    yield counter(
        "cache_rows_bad",
        "Rows for whose keys whole caches were emptied.",
        [],
        [((), section["bad"])],
    )
    yield counter(
        "caches_emptied",
        "Times caches were emptied, for rows were lost.",
        [],
        [((), section["emptied"])],
    )
