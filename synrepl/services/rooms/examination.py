"""Quick checks of all stored rooms, for ``synrepl doctor``; :mod:`.maintenance.verification` checks everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from synrepl.core.errors import StorageError
from synrepl.services.rooms.maintenance.room_job import MaintenanceProgress, ProgressListener
from synrepl.services.rooms.maintenance.verification import RoomVerification
from synrepl.storage.database import Database, Isolation, Transaction
from synrepl.storage.rooms.maintenance.examine import RoomForecast, examine_room, forecast_rooms
from synrepl.storage.rooms.maintenance.findings import RoomFinding, RoomProblem
from synrepl.storage.rooms.tables.numbers import find_room, require_room

T = TypeVar("T")

#: Findings that a report lists; the examination ends there.
MAX_FINDINGS = 1_000

#: Rooms whose size is forecast.
FORECAST_ROOMS = 10


class RoomsExamined(NamedTuple):
    """What an examination of rooms found.

    :ivar rooms: number of rooms that were examined
    :ivar findings: at most :data:`MAX_FINDINGS`
    :ivar forecasts: of the rooms with the most events, the largest on disk first
    """

    rooms: int
    findings: Sequence[RoomFinding]
    forecasts: Sequence[RoomForecast]

    def to_json(self) -> dict[str, Any]:
        """``{"rooms", "findings", "forecasts"}``."""
        return {
            "rooms": self.rooms,
            "findings": [each.to_json() for each in self.findings],
            "forecasts": [each._asdict() for each in self.forecasts],
        }


async def examine_rooms(
    database: Database,
    room_ids: Sequence[str] = (),
    progress: ProgressListener = lambda at: None,
) -> RoomsExamined:
    """Examine rooms, each in one transaction that only reads.

    Found are references to what is not there, among them state groups without rows and groups of other
    rooms; lines that differ from their groups; digests that do not fit, of the newest groups; counts that
    are wrong; and too many forward extremities.

    :param room_ids: by default all
    :raises UnknownRoom: one of them is not here
    """

    async def read(name: str, work: Callable[[Transaction], T]) -> T:
        return await database.run(name, work, read_only=True, isolation=Isolation.REPEATABLE_READ)

    wanted = room_ids
    if room_ids:
        await read("find rooms", lambda txn: [require_room(txn, each) for each in room_ids])
    else:
        wanted = await RoomVerification(database).room_ids()
    findings: list[RoomFinding] = []
    examined = 0
    for examined, room_id in enumerate(wanted, 1):
        findings += await read("examine a room", partial(_examine, room_id=room_id))
        progress(MaintenanceProgress(room_id, "room", examined, len(wanted)))
        if len(findings) >= MAX_FINDINGS:
            break
    forecasts = await read("forecast rooms", lambda txn: forecast_rooms(txn, FORECAST_ROOMS))
    return RoomsExamined(examined, findings[:MAX_FINDINGS], forecasts)


def _examine(txn: Transaction, room_id: str) -> list[RoomFinding]:
    room = find_room(txn, room_id)
    if room is None:
        return []  # forgotten meanwhile
    found: list[RoomFinding] = []
    try:
        found.extend(examine_room(txn, room))
    except StorageError as error:
        # What is so damaged that it cannot be examined further is a finding, too.
        found.append(RoomFinding(RoomProblem.DANGLING, room_id, "room", str(error)))
    return found
