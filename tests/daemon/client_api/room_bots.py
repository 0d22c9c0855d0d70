"""Handlers of rooms that note what they get."""

from __future__ import annotations

from pathlib import Path

from synrepl import Access, RoomEvent, RoomHandler, Transaction, TransactionalRoomHandler


class NotingBot(RoomHandler):
    """Appends a line to a file for each message and membership.

    :param path: of the file
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    async def on_start(self, access: Access) -> None:
        await super().on_start(access)
        self._path.touch()

    async def on_event(self, event: RoomEvent) -> None:
        if event.type == "m.room.message":
            self._note(f"{event.sender} {event.content['body']}")

    async def on_membership(
        self, room_id: str, user_id: str, membership: str, event: RoomEvent
    ) -> None:
        self._note(f"{user_id} {membership}")

    def _note(self, line: str) -> None:
        with self._path.open("a") as file:
            file.write(line + "\n")


class CountingBot(TransactionalRoomHandler):
    """Counts messages in a table."""

    def apply_event(self, txn: Transaction, event: RoomEvent) -> None:
        if event.type == "m.room.message":
            txn.execute("INSERT INTO counted VALUES (%s)", (event.event_id,))
