"""Assembles the room store of a process."""

from __future__ import annotations

from dataclasses import dataclass

from synrepl.core.clock import Scheduler
from synrepl.core.slices import Slices
from synrepl.daemon.config.config import Config
from synrepl.services.rooms.persister import RoomPersister
from synrepl.services.rooms.room_intake import RoomIntake
from synrepl.services.rooms.room_writers import RoomWriters
from synrepl.services.rooms.store import RoomStore
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.database import Database
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS


@dataclass(frozen=True, slots=True)
class RoomServices:
    """The room store of a process.

    :ivar writers: says which rooms are assigned to which process
    :ivar intake: refuses events of rooms that are assigned to other processes
    """

    store: RoomStore
    writers: RoomWriters
    intake: RoomIntake


def assemble_rooms(
    config: Config, scheduler: Scheduler, database: Database | None, writer: StreamWriter | None
) -> RoomServices | None:
    """Make the room store; None if it is not configured.

    :param writer: the writer of the process's streams; None if it writes none
    """
    if config.rooms is None or database is None:
        return None
    rooms, persister = config.rooms, None
    # Rooms may be moved to any process that writes their streams, also to one that the list does not name yet.
    if writer is not None and all(stream in writer.streams for stream in ROOM_STREAMS):
        persister = RoomPersister(
            scheduler, writer, rooms.max_rooms, rooms.limits, rooms.queue_limits
        )
    writers = RoomWriters(database, rooms.writers)
    intake = RoomIntake(persister, writers, config.instance_name, Slices(scheduler))
    return RoomServices(RoomStore(database), writers, intake)
