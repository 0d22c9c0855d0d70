"""Assigns rooms to processes, and moves them while everything runs.

The assignment is read from the database for each request, so a move takes effect with the next request at any
process. It decides only which process has a room's state in memory: batches that an earlier writer has still to
persist are as good as any, because each holds the room's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from synrepl.core.errors import InputError, Refused
from synrepl.services.rooms.assignment import RoomAssignment
from synrepl.storage.database import Database, Transaction
from synrepl.storage.membership import State, members
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.storage.rooms.tables.room_writers import (
    lock_room_writers,
    moved_counts,
    read_placements,
    write_room_writer,
    write_room_writers,
)


class NotAmongRoomWriters(InputError):
    """rooms are assigned to {writers}, and {writer!r} is not one of them; add it with 'synrepl rooms writers --set' first"""


class RoomWriterNotLive(Refused):
    """{writer!r} cannot get rooms: as a writer of {stream!r} it is {state}; start it, with 'rooms' in its configuration, and try again ('synrepl writers list' shows its state)"""


class NoRoomWriters(InputError):
    """rooms must be assigned to at least one process"""


class RoomWriter(NamedTuple):
    """A process that rooms are assigned to.

    :ivar states: its state as a writer of each stream of rooms; ``unknown`` where it is none
    :ivar moved: number of rooms that were moved to it
    """

    writer: str
    states: Mapping[str, str]
    moved: int


class RoomWriterList(NamedTuple):
    """The processes that rooms are assigned to.

    :ivar is_configured: whether this is the list of the configuration
    """

    writers: Sequence[RoomWriter]
    is_configured: bool


class PlacedRooms(NamedTuple):
    """The assignment of some rooms.

    :ivar versions: of those of them that are stored
    """

    assignment: RoomAssignment
    versions: Mapping[str, str]


class RoomWriters:
    """Reads and changes the assignment of rooms.

    :param configured: the processes of ``rooms.writers``, which count until others are set
    """

    def __init__(self, database: Database, configured: Sequence[str]) -> None:
        self._database = database
        self._configured = tuple(configured)

    async def place(self, room_ids: Collection[str]) -> PlacedRooms:
        """The assignment of rooms now."""

        def work(txn: Transaction) -> PlacedRooms:
            found = read_placements(txn, room_ids)
            assignment = RoomAssignment(found.writers or self._configured, found.moved)
            return PlacedRooms(assignment, found.versions)

        return await self._database.run("place rooms", work, read_only=True)

    async def overview(self) -> RoomWriterList:
        """The processes that rooms are assigned to, and their states."""

        def work(txn: Transaction) -> RoomWriterList:
            stored = read_placements(txn, ()).writers
            states, moved = _states(txn), moved_counts(txn)
            writers = [
                RoomWriter(writer, _states_of(states, writer), moved.get(writer, 0))
                for writer in stored or self._configured
            ]
            return RoomWriterList(writers, not stored)

        return await self._database.run("list writers of rooms", work, read_only=True)

    async def move(self, room_id: str, writer: str | None) -> str:
        """Assign a room to a process; None: to the one that the hash of its ID chooses.

        Returns when no request that comes later finds the room with another process.

        :returns: the process that it was assigned to before
        :raises UnknownRoom: the room is not stored
        :raises NotAmongRoomWriters: :raises RoomWriterNotLive:
        """

        def work(txn: Transaction) -> str:
            found = read_placements(txn, [room_id])
            writers = found.writers or self._configured
            if writer is not None:
                if writer not in writers:
                    raise NotAmongRoomWriters(writer=writer, writers=", ".join(writers))
                _check_live(txn, [writer])
            write_room_writer(txn, room_id, writer)
            return RoomAssignment(writers, found.moved).writer_of(room_id)

        return await self._database.run("move a room", work)

    async def set(self, writers: Collection[str]) -> None:
        """Assign rooms to these processes, instead of those of the configuration.

        :raises NoRoomWriters: :raises RoomWriterNotLive: one that is new in the list
        """
        if not writers:
            raise NoRoomWriters()

        def work(txn: Transaction) -> None:
            lock_room_writers(txn)
            before = read_placements(txn, ()).writers or self._configured
            _check_live(txn, [each for each in writers if each not in before])
            write_room_writers(txn, writers)

        await self._database.run("set writers of rooms", work)

    async def reset(self) -> None:
        """Assign rooms to the processes of the configuration again.

        :raises RoomWriterNotLive: one of them was not in the list
        """

        def work(txn: Transaction) -> None:
            lock_room_writers(txn)
            before = read_placements(txn, ()).writers or self._configured
            _check_live(txn, [each for each in self._configured if each not in before])
            write_room_writers(txn, ())

        await self._database.run("reset writers of rooms", work)


def _check_live(txn: Transaction, writers: Collection[str]) -> None:
    states = _states(txn)
    for writer in writers:
        for stream, state in _states_of(states, writer).items():
            if state != State.LIVE:
                raise RoomWriterNotLive(writer=writer, stream=stream, state=state)


def _states_of(states: Mapping[tuple[str, str], str], writer: str) -> dict[str, str]:
    return {stream.name: states.get((stream.name, writer), "unknown") for stream in ROOM_STREAMS}


def _states(txn: Transaction) -> dict[tuple[str, str], str]:
    """The state of each writer by stream and name."""
    return {(each.stream, each.writer): each.state for each in members(txn, ROOM_STREAMS)}
