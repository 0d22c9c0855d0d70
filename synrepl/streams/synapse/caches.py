"""Cache entries that are stale.

Real servers repeat rows and send them late. The rows commute, so all are applied.
"""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Stream
from synrepl.streams.row import BigInt, Json, Row


class CachesRow(Row, frozen=True):
    """Entries of the cache ``cache_func`` are stale.

    :ivar keys: the key of one entry; None for the whole cache
    :ivar invalidation_ts: time of the invalidation, in milliseconds since the epoch
    """

    cache_func: str
    keys: list[Json] | None
    invalidation_ts: BigInt


CACHES = Stream("caches", {UNTAGGED: CachesRow}, unordered=True, ephemeral=True)
