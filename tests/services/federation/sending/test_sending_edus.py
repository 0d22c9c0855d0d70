"""EDUs: typing, receipts, presence, what others hand over, device lists, and messages to devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.trial.unittest import TestCase

from simulator.federation.receiving_server import Reception
from simulator.federation.sending_processes import HOME
from simulator.federation.sending_world import SendingWorld
from simulator.rooms.interruptions import KillsEverywhere
from synrepl.federation.outgoing_edus import message_edus
from synrepl.services.federation.sending.edu_feed import PRESENCE_S, TYPING_AGAIN_S
from synrepl.services.federation.sending.pending_edus import MAX_KEYED, MAX_PLAIN, PendingEdus
from synrepl.storage.federation.outgoing_messages import add_messages
from synrepl.streams.synapse.device_lists import DEVICE_LISTS, DeviceListsRow
from synrepl.streams.synapse.federation import FederationRow
from synrepl.streams.synapse.presence import PresenceRow
from synrepl.streams.synapse.receipts import ReceiptRow
from synrepl.streams.synapse.to_device import ToDeviceRow
from synrepl.streams.synapse.typing import TypingRow
from synrepl.streams.synapse.un_partial_stated_room import UnPartialStatedRoomRow
from tests.services.federation.sending.sending_case import SendingCase

ALICE, CAROL, BOB = f"@alice:{HOME}", f"@carol:{HOME}", "@bob:one"


class EduCase(SendingCase):
    """A room that is shared with servers ``one`` and ``two``, and a room with ``two`` alone."""

    def begin(self, **named: Any) -> SendingWorld:
        """A world with the rooms."""
        world = self.world(**named)
        self.room = world.room("room", ["one", "two"])
        self.join_carol = world.join(self.room, CAROL)
        self.other = world.home.create_room("10", CAROL, name="other")
        world.persist(self.other, [each.event for each in self.other.room])
        world.join(self.other, "@bob:two")
        self.settle(world)
        return world

    def edus(self, world: SendingWorld, name: str, kind: str) -> Sequence[Any]:
        """The contents of the EDUs of a type that a server got."""
        found = world.receivers[name].edus
        return [each["content"] for each in found if each["edu_type"] == kind]


class TypingTest(EduCase):
    def test_tells_the_servers_in_the_room_who_begins_and_who_ceases(self) -> None:
        world = self.begin()
        room_id = self.room.room_id
        world.hear("typing", TypingRow(room_id, [ALICE, BOB]))
        world.run(1.0)
        world.hear("typing", TypingRow(room_id, [BOB, CAROL]))
        world.run(1.0)
        expected = [(ALICE, True), (ALICE, False), (CAROL, True)]
        for name in ("one", "two"):
            found = self.edus(world, name, "m.typing")
            self.assertEqual([(e["user_id"], e["typing"]) for e in found], expected)
            self.assertEqual({each["room_id"] for each in found}, {room_id})

    def test_only_the_last_change_of_a_user_is_sent(self) -> None:
        world = self.begin()
        one = world.receivers["one"]
        one.answer_s = 5.0
        for users in ([ALICE], [], [ALICE], []):
            world.hear("typing", TypingRow(self.room.room_id, users))
            world.run(0.5)
        world.run(10.0)
        self.assertEqual([e["typing"] for e in self.edus(world, "one", "m.typing")], [True, False])

    def test_repeats_that_a_user_types_until_it_ends(self) -> None:
        world = self.begin()
        world.hear("typing", TypingRow(self.room.room_id, [ALICE]))
        world.run(2.5 * TYPING_AGAIN_S)
        world.hear("typing", TypingRow(self.room.room_id, []))
        world.run(3 * TYPING_AGAIN_S)
        found = [each["typing"] for each in self.edus(world, "one", "m.typing")]
        self.assertEqual(found, [True, True, True, False])

    def test_a_server_that_is_away_misses_it(self) -> None:
        world = self.begin()
        world.federation.stop("one")
        said = world.say(self.room)
        world.run(5.0)
        world.hear("typing", TypingRow(self.room.room_id, [ALICE]))
        world.run(5.0)
        world.federation.start("one")
        world.until(lambda: said.event_id in world.receivers["one"].event_ids)
        world.run(1.0)
        self.assertEqual(self.edus(world, "one", "m.typing"), [])


class ReceiptsTest(EduCase):
    def _receipt(self, user_id: str, event_id: str, **more: Any) -> ReceiptRow:
        named = {"receipt_type": "m.read", "data": {"ts": 5}, "thread_id": None} | more
        return ReceiptRow(
            self.room.room_id,
            named["receipt_type"],
            user_id,
            event_id,
            named["data"],
            named["thread_id"],
        )

    def test_gathers_the_receipts_of_a_room(self) -> None:
        world = self.begin()
        world.hear(
            "receipts",
            self._receipt(ALICE, "$1"),
            self._receipt(CAROL, "$2"),
            self._receipt(ALICE, "$3"),
        )
        world.run(5.0)
        read = {
            ALICE: {"event_ids": ["$3"], "data": {"ts": 5}},
            CAROL: {"event_ids": ["$2"], "data": {"ts": 5}},
        }
        self.assertEqual(
            self.edus(world, "one", "m.receipt"), [{self.room.room_id: {"m.read": read}}]
        )

    def test_private_receipts_and_those_of_others_stay_here(self) -> None:
        world = self.begin()
        private = self._receipt(ALICE, "$1", receipt_type="m.read.private")
        world.hear("receipts", private, self._receipt(BOB, "$2"))
        world.run(5.0)
        self.assertEqual(self.edus(world, "two", "m.receipt"), [])

    def test_receipts_of_several_threads_are_all_sent(self) -> None:
        world = self.begin()
        for thread in (None, "main", "$root"):
            world.hear("receipts", self._receipt(ALICE, "$1", thread_id=thread))
        world.run(5.0)
        threads = {
            each[self.room.room_id]["m.read"][ALICE]["data"].get("thread_id")
            for each in self.edus(world, "one", "m.receipt")
        }
        self.assertEqual(threads, {None, "main", "$root"})


class PresenceTest(EduCase):
    def test_tells_servers_that_share_a_room_the_last_presence_of_some_seconds(self) -> None:
        world = self.begin()
        for state in ("offline", "online"):
            row = PresenceRow(CAROL, state, 1_000_000_000_000, 0, 0, "busy", True)
            world.hear("presence", row)
        bob = PresenceRow(BOB, "online", 1, 0, 0, None, True)
        world.hear("presence", bob)
        world.run(2 * PRESENCE_S)
        for name in ("one", "two"):
            (content,) = self.edus(world, name, "m.presence")
            (push,) = content["push"]
            self.assertEqual(push["user_id"], CAROL)
            self.assertEqual((push["presence"], push["status_msg"]), ("online", "busy"))
            self.assertGreater(push["last_active_ago"], 0)

    def test_a_server_that_shares_no_room_is_not_told(self) -> None:
        world = self.begin()
        dave = f"@dave:{HOME}"
        alone = world.home.create_room("10", dave, name="alone")
        world.persist(alone, [each.event for each in alone.room])
        world.hear("presence", PresenceRow(dave, "online", 1, 0, 0, None, True))
        world.run(2 * PRESENCE_S)
        self.assertEqual(self.edus(world, "one", "m.presence"), [])


class HandedOverTest(EduCase):
    """Rows of the stream ``federation``, as real servers write them."""

    def test_sends_edus_and_acknowledges_them(self) -> None:
        world = self.begin()
        edu = {"edu_type": "m.typing", "content": {"typing": True}, "destination": "one"}
        plain = {"edu_type": "org.example", "content": {"n": 1}, "destination": "two"}
        state = {"user_id": ALICE, "state": "online", "last_active_ts": 0}
        rows = [
            FederationRow("k", {"key": ["!r", ALICE], "edu": {**edu, "content": {"old": True}}}),
            FederationRow("k", {"key": ["!r", ALICE], "edu": edu}),
            FederationRow("e", plain),
            FederationRow("pd", {"state": state, "dests": ["two"]}),
        ]
        world.hand_over(*rows, token=7)
        world.run(2.0)
        self.assertEqual(self.edus(world, "one", "m.typing"), [{"typing": True}])
        self.assertEqual(self.edus(world, "two", "org.example"), [{"n": 1}])
        self.assertEqual(len(self.edus(world, "two", "m.presence")), 1)
        self.assertEqual(self.edus(world, "one", "m.presence"), [])
        self.assertEqual(world.senders["sender1"].acknowledged, [7])

    def test_presence_without_destinations_goes_to_those_that_share_a_room(self) -> None:
        world = self.begin()
        world.hand_over(FederationRow("p", {"user_id": CAROL, "state": "online"}))
        world.run(2 * PRESENCE_S)
        self.assertEqual(len(self.edus(world, "one", "m.presence")), 1)

    def test_malformed_rows_are_counted_and_acknowledged(self) -> None:
        world = self.begin()
        bad: list[tuple[str, Any]] = [
            ("k", {}),
            ("k", []),
            ("e", {"edu_type": 5, "content": {}, "destination": "one"}),
            ("e", {"edu_type": "m.x", "content": {}, "destination": 5}),
            ("pd", {"state": {"user_id": ALICE}, "dests": []}),
            ("zz", {}),
            ("p", None),
        ]
        world.hand_over(*(FederationRow(*each) for each in bad), token=3)
        world.run(2.0)
        sender = world.senders["sender1"]
        self.assertEqual(sender.sender.edus.counts["malformed"], len(bad))
        self.assertEqual(sender.acknowledged, [3])


class DeviceListsTest(EduCase):
    def _change(self, world: SendingWorld, user_id: str) -> None:
        rows = [[DeviceListsRow(user_id)]]
        world.result(lambda: world.source.writer.append(DEVICE_LISTS, rows))
        world.hear("device_lists", DeviceListsRow(user_id))

    def _told(self, world: SendingWorld, name: str) -> list[str]:
        return [e["user_id"] for e in self.edus(world, name, "m.device_list_update")]

    def test_tells_each_server_that_shares_a_room_once_for_each_change(self) -> None:
        world = self.begin()
        self._change(world, ALICE)
        self._change(world, BOB)
        world.run(10.0)
        self._change(world, CAROL)
        world.run(10.0)
        self.assertEqual(self._told(world, "one"), [ALICE, CAROL])
        self.assertEqual(self._told(world, "two"), [ALICE, CAROL])
        (content, _) = self.edus(world, "one", "m.device_list_update")
        self.assertEqual((content["prev_id"], content["stream_id"]), ([], 1))
        self.assertEqual(world.sql("SELECT * FROM synrepl._device_list_pokes"), [])

    def test_servers_of_partial_rooms_are_told_as_long_as_these_are_partial(self) -> None:
        world = self.begin()
        world.receiver("before")
        for statement in (
            "INSERT INTO synrepl._partial_rooms (room_no, epoch, join_event_id, joined_via)"
            " SELECT room_no, epoch, '$x', 'one' FROM synrepl._rooms RETURNING 1",
            "INSERT INTO synrepl._partial_room_servers (room_no, server_name)"
            " SELECT room_no, 'before' FROM synrepl._rooms RETURNING 1",
        ):
            world.sql(statement)
        self._change(world, ALICE)
        world.run(10.0)
        self.assertEqual(self._told(world, "before"), [ALICE])
        world.sql("DELETE FROM synrepl._partial_rooms RETURNING 1")
        self._change(world, ALICE)
        world.run(10.0)
        self.assertEqual(self._told(world, "before"), [ALICE])
        self.assertEqual(self._told(world, "one"), [ALICE, ALICE])

    def test_a_server_that_is_away_is_told_when_it_is_back(self) -> None:
        world = self.begin()
        world.federation.stop("one")
        world.say(self.room)
        world.run(5.0)
        self._change(world, ALICE)
        world.run(50.0)
        self._change(world, ALICE)
        world.run(50.0)
        world.federation.start("one")
        world.until(lambda: bool(self._told(world, "one")))
        world.run(100.0)
        self.assertEqual(self._told(world, "one"), [ALICE])

    def test_a_change_while_a_server_is_told_of_another_is_not_forgotten(self) -> None:
        world = self.begin()
        one = world.receivers["one"]
        one.answer_s = 5.0
        self._change(world, ALICE)
        world.until(lambda: len(world.federation.asked("send", "one")) > 1)
        self._change(world, ALICE)
        world.run(30.0)
        self.assertEqual(self._told(world, "one"), [ALICE, ALICE])

    def test_changes_are_not_forgotten_when_the_process_is_killed_anywhere(self) -> None:
        kills = KillsEverywhere()
        world = self.begin(interruptions=kills)
        kills.is_on = True
        for number in range(12):
            self._change(world, ALICE)
            told = len(self._told(world, "one"))
            world.until(lambda told=told: len(self._told(world, "one")) > told)  # type: ignore[misc]
            self.assertLess(number, 12)
        self.assertIn("tell of changed devices", {name for name, _ in kills.places})

    def test_servers_that_turn_out_to_be_in_a_room_are_told_when_it_is_complete(self) -> None:
        world = self.begin()
        world.server.operator.run(
            "poke",
            lambda txn: (
                txn.execute(
                    "INSERT INTO synrepl._device_list_pokes (destination, user_id) VALUES ('one', %s)",
                    (ALICE,),
                )
                and None
            ),
        )
        world.hear("un_partial_stated_room", UnPartialStatedRoomRow(self.room.room_id))
        world.run(5.0)
        self.assertEqual(self._told(world, "one"), [ALICE])


class MessagesTest(EduCase):
    def _send(self, world: SendingWorld, number: int, *, is_heard: bool = True) -> None:
        messages = {"@bob:one": {"DEV": {"n": number}}}
        edus = [("one", each) for each in message_edus(ALICE, "m.x", messages, f"id{number}")]
        world.server.operator.run("add", lambda txn: add_messages(txn, edus))
        if is_heard:
            world.hear("to_device", ToDeviceRow("one"))

    def _got(self, world: SendingWorld) -> list[int]:
        found = self.edus(world, "one", "m.direct_to_device")
        return [each["messages"]["@bob:one"]["DEV"]["n"] for each in found]

    def test_arrive_once_in_order_with_their_ids(self) -> None:
        world = self.begin()
        for number in range(70):
            self._send(world, number)
        world.until(lambda: len(self._got(world)) >= 70)
        self.assertEqual(self._got(world), [*range(70)])
        ids = [e["message_id"] for e in self.edus(world, "one", "m.direct_to_device")]
        self.assertEqual(ids, [f"id{number}" for number in range(70)])
        world.run(5.0)
        self.assertEqual(world.sql("SELECT * FROM synrepl._outgoing_messages"), [])

    def test_messages_of_which_nothing_was_heard_are_found(self) -> None:
        world = self.begin()
        self._send(world, 1, is_heard=False)
        world.until(lambda: self._got(world) == [1])

    def test_wait_for_a_server_that_is_away(self) -> None:
        world = self.begin()
        world.federation.stop("one")
        for number in range(3):
            self._send(world, number)
            world.run(20.0)
        world.federation.start("one")
        world.until(lambda: len(self._got(world)) == 3)
        self.assertEqual(self._got(world), [0, 1, 2])

    def test_a_lost_answer_sends_the_same_transaction_again(self) -> None:
        world = self.begin()
        one = world.receivers["one"]
        one.next.append(Reception.ANSWER_LOST)
        self._send(world, 1)
        world.run(3.0)
        self._send(world, 2)
        world.until(lambda: len(self._got(world)) == 2)
        self.assertEqual(one.repeated, 1)

    def test_each_arrives_once_wherever_the_process_is_killed(self) -> None:
        kills = KillsEverywhere()
        world = self.begin(interruptions=kills)
        one = world.receivers["one"]
        kills.is_on = True
        for number in range(30):
            one.next.extend([Reception.ANSWER_LOST] * (number % 3 == 0))
            self._send(world, number)
            if number % 4 == 0:
                world.say(self.room)
            world.until(lambda number=number: number in self._got(world), 3_000.0)  # type: ignore[misc]
        ids = [e["message_id"] for e in self.edus(world, "one", "m.direct_to_device")]
        self.assertEqual(list(dict.fromkeys(ids)), [f"id{number}" for number in range(30)])
        self.settle(world)
        self.assertIn("note delivered EDUs", {name for name, _ in kills.places})

    def test_a_message_that_is_not_accepted_is_given_up(self) -> None:
        world = self.begin()
        one = world.receivers["one"]
        one.next.append(Reception.REFUSED)
        self._send(world, 1)
        world.run(2.0)
        self._send(world, 2)
        world.until(lambda: bool(self._got(world)))
        self.assertEqual(self._got(world), [2])


class WaitingEdusTest(TestCase):
    def test_are_bounded_and_the_oldest_go(self) -> None:
        waiting = PendingEdus()
        for number in range(MAX_PLAIN + 2):
            waiting.put(b"%d" % number)
        for number in range(MAX_KEYED + 1):
            waiting.put(b"x", (str(number),))
        self.assertEqual(len(waiting), MAX_PLAIN + MAX_KEYED)
        self.assertEqual(waiting.dropped, 3)
        self.assertEqual(waiting.take(1, 0), [b"2"])


class MessageEdusTest(EduCase):
    def test_large_messages_are_divided(self) -> None:
        messages = {f"@u{n}:one": {"D": {"text": "x" * 20_000}} for n in range(7)}
        edus = message_edus(ALICE, "m.x", messages, "id")
        self.assertEqual(len(edus), 3)
        self.assertTrue(all(len(each) <= 65_536 for each in edus))
