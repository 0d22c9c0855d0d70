"""Damage that is planted in stored rooms is found and named."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from simulator.rooms.server import result_of
from synrepl.rooms import canonical_json, parse_event
from synrepl.services.rooms.maintenance.verification import RoomVerification
from synrepl.storage.database import Database, Isolation, Transaction
from synrepl.storage.rooms.maintenance.examine import examine_room, forecast_rooms
from synrepl.storage.rooms.maintenance.findings import RoomProblem
from synrepl.storage.rooms.tables.events import checksum
from synrepl.storage.rooms.tables.numbers import require_room
from tests.rooms.dags import dag, dag_names
from tests.storage.rooms.kept_rooms import MaintainedCase

T = TypeVar("T")

#: What is planted, as a statement, and the finding that must be among those of the check.
DAMAGE = {
    "UPDATE synrepl._room_event_json SET raw = raw || ' '::bytea"
    " WHERE event_no = (SELECT max(event_no) FROM synrepl._room_events)": "corrupt event",
    "DELETE FROM synrepl._room_event_json"
    " WHERE event_no = (SELECT min(event_no) FROM synrepl._room_events)": "missing JSON",
    "UPDATE synrepl._room_events SET sender = '@x:y'"
    " WHERE event_no = (SELECT max(event_no) FROM synrepl._room_events)": "wrong column",
    "UPDATE synrepl._room_events SET depth = depth + 1"
    " WHERE event_no = (SELECT max(event_no) FROM synrepl._room_events)": "wrong column",
    "UPDATE synrepl._room_events SET prev_nos = '{}'"
    " WHERE event_no = (SELECT max(event_no) FROM synrepl._room_events)": "wrong edge",
    "UPDATE synrepl._room_events SET auth_nos = auth_nos[2:]"
    " WHERE event_no = (SELECT max(event_no) FROM synrepl._room_events)": "wrong edge",
    "DELETE FROM synrepl._room_events"
    " WHERE event_no = (SELECT min(event_no) FROM synrepl._room_events)": "reference to nothing",
    "DELETE FROM synrepl._state_groups"
    " WHERE group_no = (SELECT max(group_after) FROM synrepl._room_events)": "state group without row",
    "UPDATE synrepl._state_groups SET room_no = room_no + 1"
    " WHERE group_no = (SELECT max(group_after) FROM synrepl._room_events)": "cross-room state group",
    "UPDATE synrepl._room_events SET room_no = room_no + 1"
    " WHERE event_no = (SELECT min(event_no) FROM synrepl._room_events)": "cross-room state group",
    "UPDATE synrepl._state_groups SET digest = sha256(digest)"
    " WHERE group_no = (SELECT max(group_no) FROM synrepl._state_groups)": "corrupt state group",
    "UPDATE synrepl._state_groups SET size = size - 1"
    " WHERE group_no = (SELECT max(group_no) FROM synrepl._state_groups)": "corrupt state group",
    "UPDATE synrepl._state_groups SET changes = substr(changes, 9)"
    " WHERE group_no = (SELECT max(group_no) FROM synrepl._state_groups"
    "  WHERE length(changes) > 0)": "corrupt state group",
    "DELETE FROM synrepl._state_line WHERE pos = (SELECT max(pos) FROM synrepl._state_line)": "line that differs",
    "DELETE FROM synrepl._room_keys WHERE slot = 0": "reference to nothing",
    "DELETE FROM synrepl._current_state WHERE slot = 1": "wrong current state",
    "DELETE FROM synrepl._memberships WHERE user_id = (SELECT min(user_id) FROM synrepl._memberships)": "wrong heads",
    "UPDATE synrepl._room_heads SET events = events + 1": "wrong heads",
    "UPDATE synrepl._room_heads SET topological = 0": "wrong heads",
    "UPDATE synrepl._room_heads SET extremities = 70": "many extremities",
    "UPDATE synrepl._forward_extremities SET event_no = 0"
    " WHERE event_no = (SELECT min(event_no) FROM synrepl._forward_extremities)": "reference to nothing",
    "INSERT INTO synrepl._backward_extremities SELECT room_no, 0, false, '$x' FROM synrepl._rooms": "reference to nothing",
    "INSERT INTO synrepl._redactions SELECT 0, room_no, true, '$x' FROM synrepl._rooms": "reference to nothing",
}

#: What only the full check finds: these are damages of single events or old states.
DEEP = {"corrupt event", "missing JSON", "wrong column", "wrong edge", "wrong current state"}

#: What only partial rooms have: see ``tests.services.federation.resync.test_monitoring``.
OF_PARTIAL_ROOMS = {"wrong partial state", "partial room stands still"}


class _Undo(Exception):
    """Ends a transaction without its changes."""


class OneTransaction:
    """A database whose transactions are all the same one, which is open."""

    def __init__(self, txn: Transaction) -> None:
        self._txn = txn

    async def run(
        self,
        name: str,
        work: Callable[[Transaction], T],
        *,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> T:
        """Run work."""
        return work(self._txn)


async def problems(database: Database, room_id: str) -> set[str]:
    """What the full check finds."""
    return {each.problem.value async for each in RoomVerification(database).findings(room_id)}


class Verifying(MaintainedCase):
    """Rooms with and without damage."""

    timeout = 600

    async def test_each_kind_of_damage_is_found(self) -> None:
        room_dag = dag(next(name for name in dag_names(60) if "war" in name))
        room_id = room_dag.events[0].room_id
        await self.persist(room_dag)
        self.assertEqual(await self.verified(room_id), [])
        for statement, problem in DAMAGE.items():
            with self.assertRaises(_Undo):
                await self.database.run(
                    "damage", partial(self.damage, room_id, statement=statement, problem=problem)
                )
        self.assertEqual(await self.verified(room_id), [])

    def damage(self, room_id: str, txn: Transaction, *, statement: str, problem: str) -> None:
        """Damage a room, look for what is wrong, and undo it."""
        txn.execute(statement)
        found = result_of(problems(OneTransaction(txn), room_id))
        self.assertIn(problem, found, statement)
        if problem not in DEEP and "_room_events SET room_no" not in statement:
            quick = examine_room(txn, require_room(txn, room_id))
            self.assertIn(problem, {each.problem.value for each in quick}, statement)
        raise _Undo

    async def test_content_that_does_not_fit_its_hash_is_found(self) -> None:
        room_dag = dag(dag_names(60)[0])
        event = room_dag.events[-1]
        room_id = event.room_id
        await self.persist(room_dag)
        raw = canonical_json({**event.fields, "content": {**event.content, "added": "later"}})
        self.assertEqual(parse_event(raw, event.version).event_id, event.event_id)
        self.sql(
            "UPDATE synrepl._room_event_json SET raw = %s, checksum = %s WHERE event_no ="
            " (SELECT event_no FROM synrepl._room_events WHERE event_id = %s)",
            raw,
            checksum(event.event_id, raw),
            event.event_id,
        )
        self.assertEqual(
            [each[0] for each in await self.verified(room_id)], [RoomProblem.WRONG_CONTENT]
        )

    async def test_every_problem_has_its_damage(self) -> None:
        elsewhere = {"wrong content", *OF_PARTIAL_ROOMS}
        self.assertEqual({*DAMAGE.values(), *elsewhere}, {each.value for each in RoomProblem})

    async def test_rooms_of_the_vectors_have_no_findings(self) -> None:
        for name in dag_names(300)[-3:]:
            room_dag = dag(name)
            await self.persist(room_dag)
            self.assertEqual(await self.verified(room_dag.events[0].room_id), [], name)
            await self.empty()

    async def test_the_sizes_of_rooms_are_forecast(self) -> None:
        room_dag = dag(dag_names(60)[0])
        await self.persist(room_dag)
        self.sql("ANALYZE synrepl._room_events, synrepl._room_event_json, synrepl._state_groups")
        (found,) = await self.read(lambda txn: forecast_rooms(txn, 10))
        self.assertEqual(found.room_id, room_dag.events[0].room_id)
        self.assertGreater(found.bytes, 10_000)
        self.assertGreaterEqual(found.bytes_in_a_year, found.bytes)
