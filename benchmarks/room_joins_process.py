"""The process that fills the store of a server with its rooms: ``DSN SERVER KEY_FILE [ROOM_ID MEMBERS CHANGES OTHERS]...``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from benchmarks.child import limit_lifetime, report
from benchmarks.room_state_process import fill
from benchmarks.signed_rooms import RoomSize, signed_room
from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.core.garbage import collect_after_batches
from synrepl.daemon.config.secret import read_secret
from synrepl.daemon.config.signing_key import parse_signing_key
from synrepl.storage.migrations import load, migrate

#: Arguments of a room.
_OF_ROOM = 4


async def make(clock: Any, arguments: Sequence[str]) -> None:
    """Fill the store."""
    collect_after_batches()
    dsn, server, key_file, *rooms = arguments
    key = parse_signing_key(read_secret(Path(key_file)))
    database = PostgresDatabase(clock, dsn, "master")
    await migrate(database, load())
    for at in range(0, len(rooms), _OF_ROOM):
        room_id, *numbers = rooms[at : at + _OF_ROOM]
        events = signed_room(room_id, server, key, RoomSize(*map(int, numbers)))
        await fill(clock, dsn, database, events, room_id)
    await database.run("statistics", lambda txn: txn.execute("ANALYZE"))
    await database.close()
    report({})


if __name__ == "__main__":
    limit_lifetime()
    react(lambda clock: Deferred.fromCoroutine(make(clock, sys.argv[1:])))
