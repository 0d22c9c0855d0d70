"""Continuous auditing of a small sample of cache entries."""

from __future__ import annotations

from synrepl.core.clock import Scheduler
from synrepl.tools.audit.audit import Auditor


async def sample_caches(scheduler: Scheduler, auditor: Auditor, every_s: float, keys: int) -> None:
    """Audit ``keys`` entries every ``every_s`` seconds, evenly spread, while the process runs."""
    while True:
        await scheduler.sleep(every_s / keys)
        await auditor.audit_one()
