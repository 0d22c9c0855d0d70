"""Messages to devices."""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Stream
from synrepl.streams.effects import Marks, entity
from synrepl.streams.row import Row


class ToDeviceRow(Row, frozen=True):
    """There are new messages for an entity.

    :ivar entity: a user of this server, or another server
    """

    entity: str


TO_DEVICE = Stream(
    "to_device",
    {UNTAGGED: ToDeviceRow},
    effects={ToDeviceRow: (Marks("to_device", entity("entity")),)},
)
