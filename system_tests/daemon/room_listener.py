"""A handler that writes down which events of rooms it hears of, for tests of whole processes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from synrepl.services.handlers import Batch, Handler
from synrepl.streams.synapse.events import EventRow


class HeardEvent(NamedTuple):
    """An event that a process heard of.

    :ivar writer: the process that persisted it
    :ivar token: of its fact
    """

    writer: str
    token: int
    event_id: str


class RoomListener(Handler):
    """Writes a line for each event: writer, token, event ID.

    :param path: of the file
    """

    streams = frozenset({"events"})

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    async def on_rows(self, batch: Batch) -> None:
        """Write the lines of the batch."""
        with self._path.open("a") as file:
            for fact in batch.facts:
                for row in fact.rows:
                    if isinstance(row, EventRow):
                        file.write(f"{batch.writer} {fact.token} {row.event_id}\n")


def heard_events(path: Path) -> list[HeardEvent]:
    """What a listener wrote."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [
        HeardEvent(writer, int(token), event_id)
        for writer, token, event_id in (line.split(" ") for line in lines)
    ]
