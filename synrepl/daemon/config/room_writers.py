"""Checks that the processes that persist rooms may write the streams of rooms."""

from __future__ import annotations

from synrepl.core.errors import ConfigError
from synrepl.daemon.config.config import Config
from synrepl.storage.rooms.partial.swap_facts import RESYNC_STREAMS
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.streams.catalogue import Catalogue


class RoomStreamMissing(ConfigError):
    """rooms: events of rooms are facts of {streams}; add to 'catalogue' what it lacks: {missing}"""


class RoomWriterNeedsStream(ConfigError):
    """rooms.writers: {writer!r} persists events of rooms, which writes {streams}; name it in {missing}"""


class RoomsNeedDatabase(ConfigError):
    """rooms.writers: {writer!r} is this process, and rooms are kept in the database; configure 'database'"""


def check_room_writers(config: Config, catalogue: Catalogue) -> None:
    """Check the ``rooms`` section against the streams and their writers.

    With other servers, rooms may be joined with partial state, and streams tell when they are complete.

    :raises RoomStreamMissing: :raises RoomWriterNeedsStream: :raises RoomsNeedDatabase:
    """
    rooms = config.rooms
    if rooms is None:
        return
    if not config.has_database and config.instance_name in rooms.writers:
        raise RoomsNeedDatabase(writer=config.instance_name)
    streams = ROOM_STREAMS if rooms.federation is None else RESYNC_STREAMS
    names = [each.name for each in streams]
    present = {each.name for each in catalogue}
    missing = ", ".join(each for each in names if each not in present)
    if missing:
        raise RoomStreamMissing(streams=", ".join(names), missing=missing)
    for writer in rooms.writers:
        needed = [each for each in names if writer not in config.writers_of(each)]
        if needed:
            raise RoomWriterNeedsStream(
                writer=writer,
                streams=", ".join(names),
                missing=", ".join(f"stream_writers.{each}" for each in needed),
            )
