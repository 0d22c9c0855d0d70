"""Opens the room store for a program of one's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from synrepl.adapters.postgres.reading_database import ReadingDatabase
from synrepl.core.errors import ConfigError
from synrepl.daemon.config.config import Config, load
from synrepl.daemon.database import NoDatabase, running_dsn
from synrepl.services.rooms.store import RoomStore
from synrepl.storage import migrations
from synrepl.storage.database import Transaction
from synrepl.storage.server_name import check_server

#: The name that the database server shows.
_INSTANCE = "rooms"


class WhichRooms(ConfigError):
    """open_rooms: give the DSN of a database, or config= and the path of a configuration; not both"""


@asynccontextmanager
async def open_rooms(
    dsn: str | None = None, *, config: str | Path | None = None
) -> AsyncIterator[RoomStore]:
    """Open the rooms in a database, for a program that reads them under asyncio or Trio.

    There is one connection, closed at the end of the ``async with`` block. In a handler, use
    ``RoomStore(self.access.database)`` instead.

    :param dsn: a libpq URI or key=value string
    :param config: the path of a process's configuration, whose database is opened; an embedded one must be running
    :raises ConfigError: the configuration cannot be used, or the DSN is malformed
    :raises DatabaseAway: the database cannot be reached
    :raises SynreplError: it has no rooms, another version's schema, or belongs to another server
    """
    if (dsn is None) == (config is None):
        raise WhichRooms()
    loaded: Config | None = None
    if config is not None:
        loaded = load([Path(config)])
        dsn = _dsn_of(loaded)
    assert dsn is not None

    def check(txn: Transaction) -> None:
        if loaded is not None:
            check_server(txn, loaded.server_name)
        migrations.check(txn, migrations.load())

    database = ReadingDatabase(dsn, _INSTANCE)
    try:
        await database.run("check", check, read_only=True)
        yield RoomStore(database)
    finally:
        database.close()


def _dsn_of(config: Config) -> str:
    """The DSN of a configuration's database.

    :raises NoDatabase: :raises EmbeddedAway:
    """
    if config.uses_embedded:
        return running_dsn(config.embedded_dsn_path)
    if config.dsn is None:
        raise NoDatabase()
    return config.dsn.reveal()
