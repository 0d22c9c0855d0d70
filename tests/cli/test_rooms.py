"""``synrepl rooms``: what is read of a room at the terminal is what is stored of it."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

from synrepl.rooms import Event, Room
from synrepl.storage.database import Transaction
from tests.cli.rooms_case import RoomsCase

SVG = "{http://www.w3.org/2000/svg}"


class RoomsAtTheTerminal(RoomsCase):
    """Each command for people and for programs."""

    def in_memory(self, *without: Event) -> Room:
        room = Room(self.small.version)
        for each in self.events:
            if each not in without:
                room.receive(each)
        return room

    async def test_rooms_are_listed(self) -> None:
        master = await self.filled()
        (found,) = (await self.rooms_json(master, "list"))["rooms"]
        self.assertEqual((found["room_id"], found["version"]), (self.room_id, "10"))
        self.assertEqual((found["events"], found["state"], found["joined"]), (10, 6, 2))
        head, line = (await self.rooms_text(master, "list")).splitlines()
        self.assertRegex(
            head,
            r"^room +name +version +events +outliers +state +joined +ends +waiting +full state +writer",
        )
        figures = ["10", "10", "0", "6", "2", "1", "0", "yes"]
        self.assertEqual(line.split(), [self.room_id, "-", *figures, "master"])
        self.assertEqual(found["writer"], "master")
        self.assertEqual(
            (await self.rooms_json(master, "list", "--after", self.room_id)), {"rooms": []}
        )

    async def test_rooms_are_moved_to_another_writer(self) -> None:
        master = await self.filled()
        line = (await self.rooms_text(master, "writers")).splitlines()[1]
        self.assertEqual(line.split(), ["master", "live", "0"])
        done = await self.rooms(master, "move", self.room_id, "w1")
        self.assertEqual(done.code, 1)
        self.assertIn("'w1' is not one of them", done.err)
        done = await self.rooms(master, "writers", "--set", "master,w1")
        self.assertIn("'w1' cannot get rooms: as a writer of 'events' it is unknown", done.err)
        found = await self.rooms_json(master, "move", self.room_id, "master")
        self.assertEqual(found, {"room_id": self.room_id, "writer": "master", "before": "master"})
        shown = await self.rooms_text(master, "move", self.room_id)
        self.assertEqual(shown, f"{self.room_id} stays with master\n")
        found = await self.rooms_json(master, "writers", "--set", "master")
        self.assertEqual(found["configured"], False)
        self.assertEqual([each["writer"] for each in found["writers"]], ["master"])
        self.assertTrue((await self.rooms_json(master, "writers", "--reset"))["configured"])

    async def test_a_room_that_is_being_forgotten_is_not_listed(self) -> None:
        master = await self.filled()

        def rename(txn: Transaction) -> None:
            txn.execute("UPDATE synrepl._rooms SET room_id = 'forgotten ' || room_id")

        await master.running.database.database.run("begin to forget", rename)
        self.assertEqual(await self.rooms_json(master, "list"), {"rooms": []})

    async def test_a_full_page_says_how_to_go_on(self) -> None:
        master = await self.filled()
        done = await self.rooms(master, "list", "--limit", 1)
        self.assertEqual(
            (done.code, done.err), (0, f"There may be more: --after '{self.room_id}'\n")
        )

    async def test_a_room_is_shown_with_its_ends(self) -> None:
        master = await self.filled()
        found = await self.rooms_json(master, "show", self.room_id)
        self.assertEqual(found["ends"]["forward"], [self.last.event_id])
        text = await self.rooms_text(master, "show", self.room_id)
        self.assertRegex(text, r"(?m)^joined users +2$")
        self.assertEqual(
            await self.rooms_text(master, "heads", self.room_id),
            f"end      event\nforward  {self.last.event_id}\n",
        )
        ends = await self.rooms_json(master, "heads", self.room_id)
        self.assertEqual(ends["forward"], [self.last.event_id])
        self.assertEqual((ends["backward"], ends["missing"]), ([], []))

    async def test_an_event_is_shown_with_its_bytes_and_why_it_was_refused(self) -> None:
        master = await self.filled()
        found = await self.rooms_json(master, "show", self.left.event_id)
        self.assertEqual(found["json"], json.loads(self.left.raw))
        text = await self.rooms_text(master, "show", self.refused.event_id)
        self.assertRegex(text, r"(?m)^outcome +rejected$")
        self.assertRegex(text, r"(?m)^refused because +\S.* ")
        self.assertIn(self.refused.raw.decode(), text)

    async def test_events_are_listed_in_their_order(self) -> None:
        master = await self.filled()
        found = (await self.rooms_json(master, "events", self.room_id))["events"]
        self.assertEqual({each["event_id"] for each in found}, {e.event_id for e in self.events})
        orders = [(each["topological"], each["stream_id"]) for each in found]
        self.assertEqual(orders, sorted(orders))
        until = self.joined.event_id
        some = await self.rooms_json(master, "events", self.room_id, "--until", until, "--limit", 2)
        self.assertEqual(
            [each["event_id"] for each in some["events"]], [self.right.event_id, until]
        )
        lines = (await self.rooms_text(master, "events", self.room_id)).splitlines()
        self.assertEqual(len(lines), 11)
        self.assertTrue(any(self.refused.event_id in each and "rejected" in each for each in lines))
        self.assertTrue(lines[-1].endswith(f"{self.last.event_id}  end"), lines[-1])

    async def test_a_user_gets_only_what_the_user_may_see(self) -> None:
        master = await self.filled()
        of_carol = await self.rooms_json(
            master, "events", self.room_id, "--viewer", "@carol:a", "--limit", 4
        )
        shown = [each["event_id"] for each in of_carol["events"]]
        wanted = [self.left, self.right, self.joined, self.last]
        self.assertEqual(shown, [each.event_id for each in wanted])
        self.assertEqual(of_carol["events"][-1]["json"], json.loads(self.last.raw))
        nobody = await self.rooms_json(
            master,
            "events",
            self.room_id,
            "--viewer",
            "@nobody:else",
            "--peeking",
        )
        self.assertEqual(nobody["events"], [])
        text = await self.rooms_text(master, "events", self.room_id, "--viewer", "@carol:a")
        self.assertIn(self.last.raw.decode(), text)
        self.assertNotIn(self.refused.event_id, text)

    async def test_states_are_those_of_the_room(self) -> None:
        master, room = await self.filled(), self.in_memory()

        async def state(*options: str) -> dict[tuple[str, str], str]:
            found = await self.rooms_json(master, "state", self.room_id, *options)
            return {(each["type"], each["state_key"]): each["event_id"] for each in found["state"]}

        self.assertEqual(await state(), room.current_state().as_dict())
        at = room[self.right.event_id]
        assert at.state_after is not None
        assert at.state_before is not None
        self.assertEqual(await state("--at", self.right.event_id), at.state_after.as_dict())
        self.assertEqual(
            await state("--at", self.right.event_id, "--before"), at.state_before.as_dict()
        )
        self.assertEqual(
            await state("--key", "m.room.member", "@carol:a"),
            {("m.room.member", "@carol:a"): self.small.carol.event_id},
        )
        members = await state("--type", "m.room.member")
        self.assertEqual({kind for kind, _ in members}, {"m.room.member"})
        text = await self.rooms_text(master, "state", self.room_id)
        self.assertRegex(text, rf"(?m)^m\.room\.create +{re.escape(self.small.create.event_id)}$")
        text = await self.rooms_text(
            master, "state", self.room_id, "--content", "--type", "m.room.join_rules"
        )
        self.assertIn('{"join_rule":"public"}', text)

    async def test_two_states_are_compared(self) -> None:
        master = await self.filled()
        older, newer = self.small.rules.event_id, self.left.event_id
        found = await self.rooms_json(master, "diff", self.room_id, older, newer)
        self.assertEqual(
            found["changes"],
            [
                {
                    "type": "m.room.member",
                    "state_key": "@carol:a",
                    "old": None,
                    "new": self.small.carol.event_id,
                },
                {"type": "m.room.topic", "state_key": "", "old": None, "new": newer},
            ],
        )
        text = await self.rooms_text(master, "diff", self.room_id, newer, older)
        self.assertRegex(text, r"(?m)^- +m\.room\.member +@carol:a +- +\$")
        text = await self.rooms_text(
            master, "diff", self.room_id, self.left.event_id, self.right.event_id
        )
        self.assertRegex(text, r"(?m)^~ +m\.room\.topic +\$\S+ +\$")

    async def test_a_state_is_explained_down_to_the_step_of_its_resolution(self) -> None:
        master = await self.filled()
        arguments = (self.joined.event_id, "m.room.topic")
        found = await self.rooms_json(master, "explain state", *arguments)
        chosen = self.in_memory().current_state()[("m.room.topic", "")]
        self.assertEqual((found["origin"], found["event_id"]), ("resolution", chosen))
        self.assertEqual(
            found["decision"]["candidates"], sorted([self.left.event_id, self.right.event_id])
        )
        text = await self.rooms_text(master, "explain state", *arguments)
        self.assertTrue(text.startswith(found["sentence"] + "\n"), text)
        self.assertRegex(text, rf"(?m)^{re.escape(chosen)} +chosen$")

    async def test_verdicts_and_visibility_are_explained(self) -> None:
        master = await self.filled()
        found = await self.rooms_json(master, "explain auth", self.refused.event_id)
        self.assertEqual([each["is_allowed"] for each in found["checks"]], [False, False])
        text = await self.rooms_text(master, "explain auth", self.last.event_id)
        self.assertRegex(text, r"(?m)^\$\S+ +m\.room\.create")
        self.assertRegex(text, r"(?m)^\w.* allowed +")
        found = await self.rooms_json(master, "explain rejection", self.refused.event_id)
        self.assertEqual(found["outcome"], "rejected")
        (cause,) = found["causes"]
        text = await self.rooms_text(master, "explain rejection", self.refused.event_id)
        self.assertIn(cause["code"], text)
        text = await self.rooms_text(master, "explain rejection", self.last.event_id)
        self.assertIn("was accepted", text)
        found = await self.rooms_json(
            master, "explain visibility", self.last.event_id, "@nobody:else", "--peeking"
        )
        self.assertEqual(found["verdict"]["sight"], "hidden")
        done = await self.rooms(master, "explain visibility", self.last.event_id, "carol")
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertIn("carol", done.err)
        text = await self.rooms_text(master, "explain visibility", self.last.event_id, "@carol:a")
        self.assertIn(f"\nmembership of @carol:a  join    {self.small.carol.event_id}\n", text)

    async def test_the_graph_is_drawn(self) -> None:
        master = await self.filled()
        dot = await self.rooms_text(master, "graph", self.room_id)
        self.assertIn(f'"{self.joined.event_id}" -> "{self.right.event_id}";\n', dot)
        self.assertEqual(dot.count(" -> "), sum(len(each.prev_event_ids) for each in self.events))
        path = self.directory / "room.svg"
        self.assertEqual(
            await self.rooms_text(master, "graph", self.room_id, "--svg", "-o", path), ""
        )
        root = ElementTree.fromstring(path.read_bytes())
        titles = [each.text for each in root.iter(f"{SVG}title")]
        self.assertEqual(set(titles), {each.event_id for each in self.events})
        self.assertEqual(len(list(root.iter(f"{SVG}path"))), dot.count(" -> "))
        done = await self.rooms(master, "graph", self.room_id, "--json")
        self.assertEqual([each["event_id"] for each in json.loads(done.out)["events"]], titles)

    async def test_what_is_not_there_is_named(self) -> None:
        master = await self.filled()
        for command, arguments, error in (
            ("show", ("!none:a",), "room !none:a is not in the store"),
            ("show", ("$none",), "event $none is not in the store"),
            ("state", (self.room_id, "--at", "$none"), "event $none is not in the store"),
            ("heads", ("!none:a",), "room !none:a is not in the store"),
            ("export", ("!none:a",), "room !none:a is not in the store"),
            ("graph", (self.room_id, "--until", "$none"), "event $none is not in the store"),
            ("explain auth", ("$none",), "event $none is not in the store"),
        ):
            done = await self.rooms(master, command, *arguments)
            self.assertEqual((done.code, done.out), (1, ""), command)
            self.assertEqual(done.err, f"synrepl: error: {error}\n")
        done = await self.rooms(
            master, "state", self.room_id, "--at", self.refused.event_id, "--json"
        )
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertIn("was rejected: ", done.err)
        done = await self.rooms(master, "state", self.room_id, "--before")
        self.assertEqual(done.code, 2)
        self.assertIn("--before needs --at", done.err)

    async def test_a_room_is_exported(self) -> None:
        master = await self.filled()
        lines = (await self.rooms_text(master, "export", self.room_id)).encode().splitlines()
        self.assertEqual(set(lines), {each.raw for each in self.events})
        path = self.directory / "room.jsonl"
        done = await self.rooms(master, "export", self.room_id, "-o", path)
        self.assertEqual((done.code, done.out), (0, ""))
        self.assertEqual(done.err, f"exported 10 events to {path}\n")
        self.assertEqual(path.read_bytes().splitlines(), lines)
        done = await self.rooms(master, "export", self.room_id, "-o", self.directory / "no" / "x")
        self.assertEqual(done.code, 1)
        self.assertIn("No such file or directory; choose another file with --output", done.err)
        self.assertEqual([each.name for each in self.directory.glob(".*.part")], [])

    async def test_an_export_that_fails_leaves_the_file_as_it_is(self) -> None:
        master = await self.filled()
        path = self.directory / "room.jsonl"
        path.write_text("old\n")
        done = await self.rooms(master, "export", "!none:a", "-o", path)
        self.assertEqual(done.code, 1)
        self.assertEqual(path.read_text(), "old\n")
