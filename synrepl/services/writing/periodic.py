"""Periodic tasks of processes that write: idempotency keys expire, idle writers advance."""

from __future__ import annotations

from functools import partial

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage import idempotency
from synrepl.storage.clients.devices import forget_old_devices
from synrepl.storage.clients.sliding_positions import end_unused
from synrepl.storage.clients.to_device import forget_requests
from synrepl.storage.database import Database
from synrepl.storage.rooms.tables.sent_events import forget_sent

#: Seconds for which a request may be repeated under its idempotency key.
KEEP_KEYS_S = 7 * 24 * 3600.0

#: Seconds for which a Matrix client may repeat a request under its transaction ID.
KEEP_SENT_S = 2 * 24 * 3600.0

#: Seconds for which messages are kept for a device of a Matrix client that does not sync.
KEEP_DEVICES_S = 60 * 24 * 3600.0

#: Seconds after which a connection of sliding sync that is not used ends.
KEEP_CONNECTIONS_S = 30 * 24 * 3600.0

#: Seconds between two rounds of deleting expired keys.
EXPIRE_KEYS_EVERY_S = 60.0

#: Maximum number of keys deleted in one transaction, so that none is long.
KEYS_AT_ONCE = 5_000

#: The same of devices, with the messages to them.
DEVICES_AT_ONCE = 50

#: Seconds between two checks of where all streams are settled.
SKIP_IDLE_EVERY_S = 1.0


async def expire_idempotency_keys(scheduler: Scheduler, database: Database, log: Logger) -> None:
    """Delete expired keys, transaction IDs, connections and devices, a bounded number at a time, for as long as the process runs."""
    keys = partial(idempotency.forget, older_than_s=KEEP_KEYS_S, at_most=KEYS_AT_ONCE)
    sent = partial(forget_sent, older_than_s=KEEP_SENT_S, at_most=KEYS_AT_ONCE)
    unused = partial(end_unused, older_than_s=KEEP_CONNECTIONS_S, at_most=KEYS_AT_ONCE)
    requests = partial(forget_requests, older_than_s=KEEP_SENT_S, at_most=KEYS_AT_ONCE)
    devices = partial(forget_old_devices, older_than_s=KEEP_DEVICES_S, at_most=DEVICES_AT_ONCE)
    while True:
        await scheduler.sleep(EXPIRE_KEYS_EVERY_S)
        try:
            for work in (keys, sent, requests, unused):
                while await database.run("forget_keys", work) == KEYS_AT_ONCE:
                    await scheduler.sleep(0)
            await database.run("forget devices", devices)
        except SynreplError as error:
            log.warn("cannot delete expired idempotency keys: {error}", error=error)


async def skip_idle(scheduler: Scheduler, writer: StreamWriter, log: Logger) -> None:
    """Let an idle writer advance while others write, for as long as the process runs.

    Only for a process that announces its own writer. Where a master announces all writers,
    it does this for them.
    """
    while True:
        await scheduler.sleep(SKIP_IDLE_EVERY_S)
        try:
            await writer.skip_idle()
        except SynreplError as error:
            log.warn("cannot look where the streams stand: {error}", error=error)
