"""Idempotency keys are forgotten when their time is over."""

from __future__ import annotations

from functools import partial

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.storage import idempotency
from synrepl.storage.database import Database

#: How long a request may be repeated under its key, in seconds.
KEEP_S = 7 * 24 * 3600.0

EVERY_S = 60.0

#: Deleted in one transaction, so that none is long.
AT_ONCE = 5_000


async def forget_keys(scheduler: Scheduler, database: Database, log: Logger) -> None:
    """Delete old keys, a bounded number at a time, for as long as the process runs."""
    work = partial(idempotency.forget, older_than_s=KEEP_S, at_most=AT_ONCE)
    while True:
        await scheduler.sleep(EVERY_S)
        try:
            while await database.run("forget_keys", work) == AT_ONCE:
                await scheduler.sleep(0)
        except SynreplError as error:
            log.warn("cannot forget old idempotency keys: {error}", error=error)
