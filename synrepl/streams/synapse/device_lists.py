"""Changes to users' devices."""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Generation, Stream
from synrepl.streams.effects import Marks, entity
from synrepl.streams.row import Row


class DeviceListsRow(Row, frozen=True):
    """A user's devices have changed, or another server is to be notified of it.

    :ivar entity: the user, or (1.20 and newer) the server to notify
    :ivar destination: the server to notify, from 1.1x only, else None
    :ivar is_signature: only signatures have changed; from newest peers only, else False
    :ivar hosts_calculated: the servers to notify are known; from newest peers only, else False
    """

    entity: str
    destination: str | None = None
    is_signature: bool = False
    hosts_calculated: bool = False


DEVICE_LISTS = Stream(
    "device_lists",
    {UNTAGGED: DeviceListsRow},
    shapes={
        Generation.OLDEST: {UNTAGGED: ("entity", "destination")},
        Generation.LEGACY: {UNTAGGED: ("entity", "destination")},
        Generation.TRANSITIONAL: {UNTAGGED: ("entity",)},
        Generation.MODERN: {UNTAGGED: ("entity",)},
        Generation.CURRENT: {UNTAGGED: ("entity", "is_signature", "hosts_calculated")},
    },
    effects={DeviceListsRow: (Marks("device_lists", entity("entity")),)},
)
