"""Checks of stored rooms against those in memory, and of what a follower was told of them."""

from __future__ import annotations

from collections.abc import Iterable

from simulator.rooms.change_checker import wrong_invalidations, wrong_marks
from simulator.rooms.comparison import compare_room
from simulator.rooms.room_follower import SimulatedRoomFollower
from simulator.rooms.room_model import RoomModel
from simulator.rooms.server import ImmediateDatabase, SimulatedServer, result_of
from simulator.truth import Violations
from synrepl.services.rooms.maintenance.verification import RoomVerification
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance.findings import RoomProblem

#: Characters of a difference that are shown.
_SHOWN = 3_000


class RoomChecker:
    """Adds what differs to the violations.

    :param all_state_rows: the number of changes of a state from which on followers are told to read all of it
    """

    def __init__(
        self,
        violations: Violations,
        server: SimulatedServer,
        follower: SimulatedRoomFollower,
        all_state_rows: int,
    ) -> None:
        self._violations = violations
        self._server = server
        self._follower = follower
        self._all_state_rows = all_state_rows

    def compare(self, model: RoomModel, what: str) -> None:
        """The store is the room in memory."""
        if not model.is_stored:
            return
        orders, kept = not model.backfilled, model.kept()
        try:
            self._server.operator.run(
                "compare", lambda txn: compare_room(txn, model.room, None, orders, kept)
            )
        except Exception as error:
            text = f"{type(error).__name__}: {error}"[:_SHOWN]
            self._violations.add("STORE", "after '{what}': {text}", what=what, text=text)

    def check(self, models: Iterable[RoomModel]) -> None:
        """Everything, when nothing is under way."""
        for each in models:
            self.compare(each, "a step")
            if each.is_stored and not self._violations.found:
                self._check_told(each)
            if not self._violations.found:
                self._check_changes(each)
        for stream, token in self._follower.twice:
            self._violations.add("ONCE", "{fact} was read twice", fact=(stream, token))

    def _check_told(self, model: RoomModel) -> None:
        """Each event was told once, with its stream ID, and each change of the current state."""
        found: dict[str, list[int]] = {}

        def work(txn: Transaction) -> None:
            txn.execute(
                "SELECT e.event_id, e.stream_id FROM synrepl._room_events e"
                " JOIN synrepl._rooms r USING (room_no)"
                " WHERE r.room_id = %s AND e.stream_id IS NOT NULL",
                (model.room_id,),
            )
            found.update({event_id: [stream_id] for event_id, stream_id in txn.fetchall()})

        self._server.operator.run("stream IDs", work)
        told = self._follower.told(model.room_id, *model.told_before)
        wrong = {
            event_id
            for event_id, (stream_id,) in found.items()
            if stream_id not in told.get(event_id, ())
        }
        wrong |= told.keys() - found.keys() - model.gone - model.demoted
        if not model.has_returned:
            wrong |= {event_id for event_id, ids in told.items() if len(ids) > 1}
        for event_id in sorted(wrong):
            self._violations.add(
                "TOLD",
                "{event_id}: stored with {stored}, told with {told}",
                event_id=event_id,
                stored=found.get(event_id),
                told=told.get(event_id),
            )
        current = self._follower.current_state(model.room_id, model.told_before[0])
        if current != model.room.current_state().as_dict():
            self._violations.add(
                "TOLD", "the changes of the state of {room} lead to another", room=model.room_id
            )

    def _check_changes(self, model: RoomModel) -> None:
        """Followers heard of each change of the current state, and what it makes stale."""
        room_id, batches = model.room_id, model.changes
        marks = self._follower.change_marks(room_id)
        for wrong in wrong_marks(room_id, batches, marks, self._all_state_rows):
            self._violations.add("MARKS", "{wrong}", wrong=wrong[:_SHOWN])
        invalidations = self._follower.invalidations(room_id)
        for wrong in wrong_invalidations(room_id, batches, invalidations):
            self._violations.add("STALE", "{wrong}", wrong=wrong[:_SHOWN])

    def check_nothing_is_wrong(self) -> None:
        """Verification finds nothing."""

        async def findings() -> list[str]:
            verification = RoomVerification(ImmediateDatabase(self._server.operator))
            return [
                str(each)
                for room_id in await verification.room_ids()
                async for each in verification.findings(room_id)
                # Random events have no content hashes.
                if each.problem is not RoomProblem.WRONG_CONTENT
            ]

        for each in result_of(findings()):
            self._violations.add("VERIFY", "{finding}", finding=each)
