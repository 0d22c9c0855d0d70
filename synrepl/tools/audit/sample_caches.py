"""A few cache entries are audited all the time."""

from __future__ import annotations

from synrepl.core.clock import Scheduler
from synrepl.tools.audit.audit import Auditor


async def sample_caches(scheduler: Scheduler, auditor: Auditor, every_s: float, keys: int) -> None:
    """Look at ``keys`` entries in every ``every_s`` seconds, evenly spread, for as long as the process runs."""
    while True:
        await scheduler.sleep(every_s / keys)
        await auditor.audit_one()
