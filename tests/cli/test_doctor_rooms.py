"""``synrepl doctor rooms``, and what ``synrepl doctor`` says about rooms."""

from __future__ import annotations

import json

from tests.cli.cli_case import InProcessMaster
from tests.cli.rooms_case import RoomsCase

#: Damage as statements, and what is said to be wrong.
DAMAGE = {
    "DELETE FROM synrepl._state_groups"
    " WHERE group_no = (SELECT max(group_after) FROM synrepl._room_events)": "state group without row",
    "UPDATE synrepl._state_groups SET room_no = room_no + 1"
    " WHERE group_no = (SELECT max(group_after) FROM synrepl._room_events)": "cross-room state group",
    "UPDATE synrepl._forward_extremities SET event_no = 0": "reference to nothing",
    "DELETE FROM synrepl._state_line"
    " WHERE pos = (SELECT max(pos) FROM synrepl._state_line)": "line that differs",
    "UPDATE synrepl._state_groups SET digest = sha256(digest)"
    " WHERE group_no = (SELECT max(group_no) FROM synrepl._state_groups)": "corrupt state group",
    "UPDATE synrepl._room_heads SET extremities = 70": "many extremities",
}


class DoctorOfRooms(RoomsCase):
    async def change(self, master: InProcessMaster, statement: str) -> None:
        def work(txn: object) -> None:
            txn.execute(statement)  # type: ignore[attr-defined]

        await master.running.database.database.run("damage", work)

    async def test_nothing_is_wrong_and_sizes_are_forecast(self) -> None:
        master = await self.filled()
        done = await self.run_command("doctor", "rooms", "-c", master.path)
        self.assertEqual((done.code, done.err), (0, ""))
        first, *looked_at, _, head, line = done.out.splitlines()
        self.assertEqual(first, "nothing is wrong in 1 room")
        self.assertRegex(" ".join(looked_at), "^looked at: .* 'synrepl rooms verify' looks at ")
        self.assertRegex(head, r"^room +events +size +events a day +size in a year$")
        self.assertRegex(line, rf"^{self.room_id} +10 +[\d.]+ [kM]B +\d+\.\d +[\d.]+ [kM]B$")

    async def test_the_size_is_that_of_tables_that_nobody_has_analysed(self) -> None:
        master = await self.filled()
        done = await self.run_command("doctor", "rooms", "-c", master.path, "--json")
        (room,) = json.loads(done.out)["forecasts"]
        self.assertEqual((room["room_id"], room["events"]), (self.room_id, 10))
        self.assertTrue(10_000 < room["bytes"] < 1_000_000, room)

    async def test_each_kind_of_damage_is_named(self) -> None:
        for statement, problem in DAMAGE.items():
            master = await self.filled()
            await self.change(master, statement)
            done = await self.run_command("doctor", "rooms", "-c", master.path, self.room_id)
            self.assertEqual((done.code, done.err), (1, ""), statement)
            self.assertRegex(done.out, rf"(?m)^{self.room_id} +{problem} ", statement)
            self.assertRegex(done.out, r"(?m)^\d+ findings? in 1 room$")
            await master.stop()

    async def test_the_whole_examination_has_the_rooms(self) -> None:
        master = await self.filled()
        done = await self.run_command("doctor", "-c", master.path, "--json")
        self.assertEqual(done.err, "")
        found = json.loads(done.out)
        self.assertEqual((found["rooms"]["rooms"], found["rooms"]["findings"]), (1, []))
        await self.change(master, "UPDATE synrepl._room_heads SET extremities = 70")
        done = await self.run_command("doctor", "-c", master.path)
        self.assertEqual((done.code, done.err), (1, ""))
        self.assertIn("many extremities", done.out)

    async def test_a_room_that_is_not_there(self) -> None:
        master = await self.filled()
        done = await self.run_command("doctor", "rooms", "-c", master.path, "!none:a")
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertEqual(done.err, "synrepl: error: room !none:a is not in the store\n")
