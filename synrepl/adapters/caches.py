"""The cache registry of this process, on Twisted's Deferreds.

from synrepl import cached

class Users:
    @cached(max_entries=10_000, by_name=True)
    async def get_user_by_id(self, user_id: str) -> User: ...
"""

from __future__ import annotations

import time
from typing import Any

from twisted.internet.defer import Deferred

from synrepl.caches.registry import Caches
from synrepl.caches.runtime import CacheRuntime
from synrepl.core.clock import Promise


def make_caches() -> Caches:
    """Make a separate registry, for another process in the same Python."""
    return Caches(CacheRuntime(_promise, Deferred.fromCoroutine, time.monotonic))


def _promise() -> Promise[Any]:
    return Deferred()


#: The default registry: ``cached`` and ``cached_list`` register their caches here.
cache_registry = make_caches()

cached = cache_registry.cached
cached_list = cache_registry.cached_list
