"""``python -m interop.room_importer SETTINGS``: imports the rooms of a running server, and follows it.

The settings are JSON: ``source`` and ``target`` (DSNs), ``keys`` (public keys by server and key ID), ``status``
(the file that is written after each round, as JSON) and ``settle_s``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.task import react

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.rooms import keys_of
from synrepl.services.rooms.importing.findings import MAX_LISTED
from synrepl.services.rooms.importing.following import RoomFollower
from synrepl.services.rooms.importing.importer import RoomImporter
from synrepl.services.rooms.importing.journal import ImportJournal
from synrepl.storage.foreign.store import ForeignStore
from synrepl.storage.migrations import load, migrate
from tests.services.rooms.importing_case import RoomsInMemory

#: Seconds between two rounds.
_EVERY_S = 0.5


async def run(clock: Any, settings: dict[str, Any]) -> None:
    """Import, then follow until the process is ended."""
    scheduler = TwistedScheduler(clock)
    target = PostgresDatabase(clock, settings["target"], "importer")
    await migrate(target, load())
    source = ForeignStore(PostgresDatabase(clock, settings["source"], "importer"))
    journal = ImportJournal(target, "peer")
    sink = RoomsInMemory()
    importer = RoomImporter(source, journal, sink, keys_of(settings["keys"]))
    follower = RoomFollower(scheduler, source, importer, settings["settle_s"])
    await follower.begin()
    began, used = time.monotonic(), time.process_time()
    copied = await importer.run()
    copy = {
        "events": copied.counts.events,
        "seconds": time.monotonic() - began,
        "cpu": time.process_time() - used,
    }
    while True:
        await follower.poll()
        report = await journal.report(MAX_LISTED)
        status = {
            "copy": copy,
            "report": json.loads(msgspec.json.encode(report)),
            "findings": [str(each) for each in report.findings],
            "extremities": {
                room_id: sorted(await sink.forward_extremities(room_id)) for room_id in sink.rooms
            },
        }
        _write(Path(settings["status"]), status)
        await scheduler.sleep(_EVERY_S)


def _write(path: Path, status: object) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(status))
    os.replace(new, path)


if __name__ == "__main__":
    settings = json.loads(Path(sys.argv[1]).read_text())
    react(lambda clock: Deferred.fromCoroutine(run(clock, settings)), [])
