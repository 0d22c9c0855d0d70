"""Checks that the processes that persist rooms may write the streams of rooms."""

from __future__ import annotations

from synrepl.core.errors import ConfigError
from synrepl.daemon.config.config import Config
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.streams.catalogue import Catalogue


class RoomStreamMissing(ConfigError):
    """rooms: events of rooms are facts of {stream!r}, which is not in the catalogue; add it to 'catalogue'"""


class RoomWriterNeedsStream(ConfigError):
    """rooms.writers: {writer!r} persists events of rooms, which writes {stream!r}; name it in stream_writers.{stream}"""


class RoomsNeedDatabase(ConfigError):
    """rooms.writers: {writer!r} is this process, and rooms are kept in the database; configure 'database'"""


def check_room_writers(config: Config, catalogue: Catalogue) -> None:
    """Check the ``rooms`` section against the streams and their writers.

    :raises RoomStreamMissing: :raises RoomWriterNeedsStream: :raises RoomsNeedDatabase:
    """
    rooms = config.rooms
    if rooms is None:
        return
    if not config.has_database and config.instance_name in rooms.writers:
        raise RoomsNeedDatabase(writer=config.instance_name)
    for stream in ROOM_STREAMS:
        if stream.name not in [each.name for each in catalogue]:
            raise RoomStreamMissing(stream=stream.name)
        for writer in rooms.writers:
            if writer not in config.writers_of(stream.name):
                raise RoomWriterNeedsStream(writer=writer, stream=stream.name)
