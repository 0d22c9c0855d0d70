"""Assembles the room store of a process."""

from __future__ import annotations

from dataclasses import dataclass

from synrepl.core.clock import Scheduler
from synrepl.daemon.config.config import Config
from synrepl.services.rooms.assignment import RoomAssignment
from synrepl.services.rooms.persister import RoomPersister
from synrepl.services.rooms.room_intake import RoomIntake
from synrepl.services.rooms.store import RoomStore
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.database import Database


@dataclass(frozen=True, slots=True)
class RoomServices:
    """The room store of a process.

    :ivar intake: refuses events of rooms that are assigned to other processes
    """

    store: RoomStore
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
    if writer is not None and config.instance_name in rooms.writers:
        persister = RoomPersister(scheduler, writer, rooms.max_rooms, rooms.limits)
    assignment = RoomAssignment(config.instance_name, rooms.writers)
    return RoomServices(RoomStore(database), RoomIntake(database, persister, assignment))
