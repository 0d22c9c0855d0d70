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
from twisted.logger import Logger

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.adapters.postgres.session import open_session
from synrepl.adapters.postgres.single import PostgresSingles
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.rooms import keys_of
from synrepl.services.rooms.importing.findings import MAX_LISTED
from synrepl.services.rooms.importing.following import RoomFollower
from synrepl.services.rooms.importing.importer import RoomImporter
from synrepl.services.rooms.importing.journal import ImportJournal
from synrepl.services.rooms.importing.persisting import PersistingSink
from synrepl.services.rooms.persister import RoomPersister
from synrepl.services.writing.commit_listener import NullCommitListener
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.database import Transaction
from synrepl.storage.foreign.store import ForeignStore
from synrepl.storage.migrations import load, migrate
from synrepl.storage.postgres.store import PostgresStore
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS

#: Seconds between two rounds.
_EVERY_S = 0.5


async def run(clock: Any, settings: dict[str, Any]) -> None:
    """Import, then follow until the process is ended."""
    scheduler = TwistedScheduler(clock)
    dsn = settings["target"]
    target = PostgresDatabase(clock, dsn, "importer")
    await migrate(target, load())
    store = PostgresStore(
        scheduler,
        target,
        lambda: open_session(clock, dsn, "importer"),
        "importer",
        statements=PostgresSingles(clock, dsn, "importer"),
    )
    await store.prepare(ROOM_STREAMS)
    writer = StreamWriter(
        scheduler, store, "importer", ROOM_STREAMS, NullCommitListener(), Logger()
    )
    await writer.start()
    source = ForeignStore(PostgresDatabase(clock, settings["source"], "importer"))
    journal = ImportJournal(target, "peer")
    sink = PersistingSink(RoomPersister(scheduler, writer), target)
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
            "extremities": await _extremities(target),
        }
        _write(Path(settings["status"]), status)
        await scheduler.sleep(_EVERY_S)


async def _extremities(target: PostgresDatabase) -> dict[str, list[str]]:
    def work(txn: Transaction) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        txn.execute(
            "SELECT r.room_id, e.event_id FROM synrepl._forward_extremities x"
            " JOIN synrepl._room_events e USING (event_no) JOIN synrepl._rooms r"
            " ON r.room_no = e.room_no ORDER BY 1, 2"
        )
        for room_id, event_id in txn.fetchall():
            found.setdefault(room_id, []).append(event_id)
        return found

    return await target.run("forward extremities", work, read_only=True)


def _write(path: Path, status: object) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(status))
    os.replace(new, path)


if __name__ == "__main__":
    settings = json.loads(Path(sys.argv[1]).read_text())
    react(lambda clock: Deferred.fromCoroutine(run(clock, settings)), [])
