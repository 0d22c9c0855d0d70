"""The process that reads once from a server that was just started: ``DSN EVENT_ID ...``.

With one event it reads the state after it, with several the entries of a page.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from benchmarks.child import limit_lifetime, report
from benchmarks.room_state_process import CREATE, LEVELS, timed
from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.services.rooms.store import RoomStore
from synrepl.storage.rooms.reading.event_access import EventNotStored


async def measure(clock: Any, arguments: Sequence[str]) -> None:
    """Connect, and read."""
    dsn, *ids = arguments
    keys = [CREATE, LEVELS]
    database = PostgresDatabase(clock, dsn, "master")
    store = RoomStore(database)
    # Catalogs are not what is measured.
    for read in (lambda: store.entries_at(["$none"], keys), lambda: store.state_ids_at("$none")):
        with suppress(EventNotStored):
            await read()
    if len(ids) > 1:
        taken = await timed(lambda: store.entries_at(ids, keys))
    else:
        taken = await timed(lambda: store.state_ids_at(ids[0]))
    await database.close()
    report({"ms": taken})


if __name__ == "__main__":
    limit_lifetime()
    react(lambda clock, *arguments: Deferred.fromCoroutine(measure(clock, arguments)), sys.argv[1:])
