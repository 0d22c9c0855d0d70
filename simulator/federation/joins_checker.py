"""What holds of our servers when nothing is disturbed any more, and everything that was begun has ended."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from simulator.federation.joins_oracle import compare_with_expected
from simulator.federation.joins_world import STEADY, JoinsWorld
from simulator.federation.own_server import OwnServer
from simulator.rooms.server import ImmediateDatabase, result_of
from synrepl.services.rooms.maintenance.verification import RoomVerification

#: Tables that are empty once all rooms are complete.
_EMPTY = (
    *("_partial_rooms", "_partial_events", "_partial_room_servers", "_resync_events"),
    *("_listed_events", "_fetched_events", "_room_joins"),
    *("_staged_events", "_waiting_events"),
)

#: Of these tables, those that also tell that something is under way.
UNDER_WAY = ("_partial_rooms", "_room_joins", "_staged_events", "_waiting_events")


def rows_left(server: OwnServer, *tables: str) -> dict[str, int]:
    """The numbers of rows of those tables of a server that have any."""
    counted = " UNION ALL ".join(
        f"SELECT '{each}', count(*) FROM synrepl.{each}" for each in tables
    )
    return {name: count for name, count in server.sql(counted) if count}


class JoinsChecker:
    """Checks the end of a run."""

    def __init__(self, world: JoinsWorld) -> None:
        self._world = world

    def faults(self) -> Iterator[str]:
        """What is wrong; nothing, if all is well."""
        for server in self._world.own.values():
            if left := rows_left(server, *_EMPTY):
                yield f"LEFTOVERS: {server.name} has {left}"
                continue
            yield from self._faults_of_rooms(server)
            yield from self._damage(server)

    def _faults_of_rooms(self, server: OwnServer) -> Iterator[str]:
        world = self._world
        local = world.local[server.name].room_id
        stored = {room_id for (room_id,) in server.sql("SELECT room_id FROM synrepl._rooms")}
        if stored != {local, *world.rooms}:
            yield f"ROOMS: {server.name} has {sorted(stored)}"
            return
        for room_id in sorted(stored):
            stretches = server.stretches.get(room_id, [])
            if stretches and room_id == local:
                yield f"TOUCHED: the local room of {server.name} was partial"
            if any(each.last is None for each in stretches):
                yield f"COMPLETE: {server.name} has not completed {room_id}"
            try:
                compare = partial(
                    compare_with_expected,
                    room_id=room_id,
                    stretches=stretches,
                    state_before=world.state_before,
                    own=server.name,
                )
                expected = server.database.operator.run("compare", compare)
            except AssertionError as error:
                lines = [each for each in str(error).splitlines() if each.strip()]
                yield f"STATE: {room_id} of {server.name}: {' | '.join(lines)[:1500]}"
                continue
            if room_id == local:
                continue
            truth = world.pure[STEADY].rooms[room_id].room
            ends = expected.forward_extremities
            if ends == truth.forward_extremities and (
                expected.current_state().as_dict() != truth.current_state().as_dict()
            ):
                yield f"CURRENT: the state of {room_id} at {server.name} is not that of {STEADY}"

    def _damage(self, server: OwnServer) -> Iterator[str]:
        async def findings() -> list[str]:
            verification = RoomVerification(ImmediateDatabase(server.database.operator))
            return [
                str(each)
                for room_id in await verification.room_ids()
                async for each in verification.findings(room_id)
            ]

        for each in result_of(findings()):
            yield f"DAMAGE: {server.name}: {each}"
