"""A writer that its own process announces goes on while others write, without writing itself."""

from __future__ import annotations

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.services.writing.stream_writer import StreamWriter

#: Seconds between two looks at where everything is settled.
EVERY_S = 1.0


async def skip_idle(scheduler: Scheduler, writer: StreamWriter, log: Logger) -> None:
    """Look again and again; to be spawned.

    Where a master announces everybody it does the same for all.
    """
    while True:
        await scheduler.sleep(EVERY_S)
        try:
            await writer.skip_idle()
        except SynreplError as error:
            log.warn("cannot look where the streams stand: {error}", error=error)
