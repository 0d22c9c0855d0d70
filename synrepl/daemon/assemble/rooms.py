"""Assembles the room store of a process."""

from __future__ import annotations

from dataclasses import dataclass

from synrepl.core.slices import Slices
from synrepl.daemon.assemble.ports import Ports
from synrepl.daemon.config.config import Config
from synrepl.daemon.config.signing_key import signing_key_of
from synrepl.services.rooms.persister import RoomPersister
from synrepl.services.rooms.room_intake import RoomIntake
from synrepl.services.rooms.room_writers import RoomWriters
from synrepl.services.rooms.sending.aliases import RoomAliases
from synrepl.services.rooms.sending.event_sender import EventSender
from synrepl.services.rooms.sending.new_room import DEFAULT_ROOM_VERSION
from synrepl.services.rooms.sending.placements import PlacementCache
from synrepl.services.rooms.sending.room_changes import RoomChanges
from synrepl.services.rooms.store import RoomStore
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.database import Database
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS


@dataclass(frozen=True, slots=True)
class RoomSending:
    """What users of this server do with rooms."""

    sender: EventSender
    aliases: RoomAliases
    changes: RoomChanges


@dataclass(frozen=True, slots=True)
class RoomServices:
    """The room store of a process.

    :ivar persister: None in a process that persists no room
    :ivar writers: says which rooms are assigned to which process
    :ivar intake: refuses events of rooms that are assigned to other processes
    :ivar sending: sends events of users of this server; None without a signing key
    """

    store: RoomStore
    persister: RoomPersister | None
    writers: RoomWriters
    intake: RoomIntake
    sending: RoomSending | None


def assemble_rooms(
    config: Config, ports: Ports, database: Database | None, writer: StreamWriter | None
) -> RoomServices | None:
    """Make the room store; None if it is not configured.

    :param writer: the writer of the process's streams; None if it writes none
    """
    if config.rooms is None or database is None:
        return None
    rooms, persister, scheduler = config.rooms, None, ports.scheduler
    # Rooms may be moved to any process that writes their streams, also to one that the list does not name yet.
    if writer is not None and all(stream in writer.streams for stream in ROOM_STREAMS):
        persister = RoomPersister(
            scheduler, writer, rooms.max_rooms, rooms.limits, rooms.queue_limits
        )
    writers = RoomWriters(database, rooms.writers)
    intake = RoomIntake(persister, writers, config.instance_name, Slices(scheduler))
    key, sending = signing_key_of(config), None
    if key is not None:
        sender = EventSender(
            scheduler,
            database,
            PlacementCache(scheduler, writers),
            persister,
            config.instance_name,
            config.server_name,
            key,
            ports.forwarder,
        )
        sender.add_actions(ports.actions)
        aliases = RoomAliases(database, sender)
        version = DEFAULT_ROOM_VERSION
        if rooms.clients is not None:
            version = rooms.clients.default_room_version
        sending = RoomSending(sender, aliases, RoomChanges(database, sender, aliases, version))
    return RoomServices(RoomStore(database), persister, writers, intake, sending)
