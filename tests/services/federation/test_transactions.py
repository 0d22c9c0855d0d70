"""Transactions of other servers: taken in once, whatever comes with them."""

from __future__ import annotations

import json
from typing import Any

from synrepl.federation.transactions import BadTransaction
from synrepl.rooms import canonical_json
from synrepl.services.federation.inbound.transactions import (
    MAX_OF_ORIGIN,
    BadTransactionId,
    TooManyTransactions,
)
from synrepl.storage.store import DatabaseAway
from tests.services.federation.inbound_case import ALICE, BOB, CAROL, HERE, OTHER, InboundCase


class Transactions(InboundCase):
    """A process that persists all rooms."""

    async def test_events_of_a_transaction_are_judged_before_it_is_answered(self) -> None:
        room = await self.shared_room()
        sent = [self.say(room, f"{number}") for number in range(5)]
        answer = await self.here.receive(sent)
        self.assertEqual(answer, {each.event_id: {} for each in sent})
        self.assertEqual([self.stored(each) for each in sent], ["accepted"] * 5)
        await self.check_equal(room.room, orders=False)

    async def test_events_of_many_rooms_come_in_one_transaction(self) -> None:
        rooms = [await self.shared_room(name=f"r{number}") for number in range(4)]
        rooms.append(await self.shared_room("12", name="twelve"))
        rooms.append(await self.shared_room("1", name="one"))
        sent = [self.say(room, f"{number}") for number in range(3) for room in rooms]
        answer = await self.here.receive(sent)
        self.assertEqual(answer, {each.event_id: {} for each in sent})
        for room in rooms:
            await self.check_equal(room.room, orders=False)

    async def test_a_repeated_transaction_gets_the_answer_of_the_first_time(self) -> None:
        room = await self.shared_room()
        first = await self.here.receive([self.say(room)], txn_id="t")
        again = await self.here.receive([self.say(room)], txn_id="t")
        self.assertEqual(again, first)
        self.assertEqual(self.here.receiver.outcomes["repeated"], 1)

    async def test_transaction_ids_of_two_servers_have_nothing_to_do_with_each_other(self) -> None:
        room = await self.shared_room()
        await self.here.receive([self.say(room)], txn_id="t")
        event = self.say(room)
        answer = await self.here.receive([event], txn_id="t", origin=OTHER)
        self.assertEqual(answer, {event.event_id: {}})

    async def test_edus_of_a_repeated_transaction_are_not_taken_again(self) -> None:
        room = await self.shared_room()
        content = {"room_id": room.room_id, "user_id": BOB, "typing": True}
        for _ in range(2):
            edus = [{"edu_type": "m.typing", "content": content}]
            await self.here.receive([], edus, txn_id="t")
        self.assertEqual(len(self.here.edus.taken), 1)

    async def test_a_pdu_that_is_no_event_has_an_error_and_the_others_are_taken(self) -> None:
        room = await self.shared_room()
        event = self.say(room)
        nested = b'{"room_id":"%b","content":%b}' % (
            room.room_id.encode(),
            b"[" * 300 + b"]" * 300,
        )
        pdus: list[Any] = [b"17", b"null", event, b'"text"', b"[]", b"{}", b'{"room_id":3}', nested]
        answer = await self.here.receive(pdus, ["text", 17, {"edu_type": 3}, {}])
        self.assertEqual(answer.pop(event.event_id), {})
        self.assertEqual(sorted(answer), [f"pdus[{place}]" for place in (0, 1, 3, 4, 5, 6, 7)])
        self.assertTrue(all("error" in each for each in answer.values()), answer)

    async def test_events_of_rooms_that_nobody_here_is_in_are_refused(self) -> None:
        unknown = self.remote.create_room("10", BOB, name="unknown")
        left = await self.shared_room(name="left")
        leave = self.remote.send(
            left.room_id, "m.room.member", ALICE, {"membership": "leave"}, ALICE
        )
        await self.here.receive([leave])
        late = self.say(left)
        answer = await self.here.receive([self.say(unknown), late])
        self.assertIn("no user of this server", answer["pdus[0]"]["error"])
        self.assertIn("no user of this server", answer[late.event_id]["error"])
        self.assertEqual([self.stored(leave), self.stored(late)], ["accepted", None])

    async def test_a_server_that_the_acl_of_a_room_denies_is_refused_there_alone(self) -> None:
        room, free = await self.shared_room(), await self.shared_room(name="free")
        acl = {"allow": ["*"], "deny": ["rem*.test"], "allow_ip_literals": True}
        before = self.say(room)
        denied = self.remote.send(room.room_id, "m.room.server_acl", BOB, acl, "")
        await self.here.receive([before, denied])
        event, other = self.say(room), self.say(free)
        answer = await self.here.receive([event, other])
        self.assertIn("does not admit", answer[event.event_id]["error"])
        self.assertEqual(answer[other.event_id], {})
        relayed = await self.here.receive([event], origin=OTHER)
        self.assertEqual(relayed, {event.event_id: {}})

    async def test_dropped_events_have_errors(self) -> None:
        room = await self.shared_room()
        unsigned = self.say(room)
        bare = {**unsigned.fields, "signatures": {}}
        forged = self.say(room)
        wrong = json.loads(forged.raw)
        wrong["signatures"][next(iter(wrong["signatures"]))] = {"ed25519:1": "A" * 86}
        answer = await self.here.receive([canonical_json(bare), canonical_json(wrong)])
        self.assertIn("did not sign", answer[unsigned.event_id]["error"])
        self.assertIn("signature", answer[forged.event_id]["error"])
        self.assertEqual([self.stored(unsigned), self.stored(forged)], [None, None])

    async def test_an_event_with_another_content_than_was_hashed_is_redacted(self) -> None:
        room = await self.shared_room()
        event = self.say(room)
        changed = {**event.fields, "content": {"body": "changed"}}
        await self.here.receive([canonical_json(changed)])
        self.assertEqual(self.stored(event), "accepted")
        raw = self.sql(
            "SELECT raw FROM synrepl._room_event_json JOIN synrepl._room_events USING (event_no)"
            " WHERE event_id = %s",
            event.event_id,
        )
        self.assertEqual(json.loads(bytes(raw))["content"], {})

    async def test_rejected_events_have_an_error_and_soft_failed_ones_have_none(self) -> None:
        room = await self.shared_room()
        self.remote.send(room.room_id, "m.room.member", CAROL, {"membership": "join"}, CAROL)
        joined = [each.event for each in room.room][-1:]
        rejected = self.say(room, sender=f"@nobody:{OTHER}")
        before = sorted(room.room.forward_extremities)
        ban = self.remote.send(room.room_id, "m.room.member", BOB, {"membership": "ban"}, CAROL)
        late = self.say(room, sender=CAROL, follows=before)
        answer = await self.here.receive([*joined, rejected, ban, late])
        self.assertIn("rejected", answer[rejected.event_id]["error"])
        self.assertEqual(answer[late.event_id], {})
        self.assertEqual([self.stored(rejected), self.stored(late)], ["rejected", "soft-failed"])

    async def test_refuses_what_is_no_transaction(self) -> None:
        event = self.say(await self.shared_room())
        with self.assertRaises(BadTransaction):
            await self.here.receive([event] * 51)
        with self.assertRaises(BadTransaction):
            await self.here.receive([], [{}] * 101)
        with self.assertRaises(BadTransaction):
            await self.here.receiver.receive(OTHER, "t", b'{"pdus":{}}')
        with self.assertRaises(BadTransaction):
            await self.here.receiver.receive(OTHER, "t", b'{"pdus":' + b"[" * 200_000)
        for txn_id in ("", "x" * 256, "a\0"):
            with self.assertRaises(BadTransactionId):
                await self.here.receiver.receive(OTHER, txn_id, b"{}")
        self.assertEqual(self.stored(event), None)

    async def test_a_server_has_a_few_transactions_at_a_time(self) -> None:
        room = await self.shared_room()
        turn = self.one.persister.queues.entered({room.room_id: 1})
        with turn as (lock,):
            async with lock:
                waiting = [
                    self.start(self.here.receive([self.say(room)])) for _ in range(MAX_OF_ORIGIN)
                ]
                with self.assertRaises(TooManyTransactions):
                    await self.here.receive([self.say(room)])
                other = await self.here.receive([], origin=OTHER)
        self.assertEqual(other, {})
        for each in waiting:
            await each

    async def test_messages_to_devices_that_cannot_be_stored_have_the_transaction_sent_again(
        self,
    ) -> None:
        room = await self.shared_room()
        event = self.say(room)
        content = {
            "sender": BOB,
            "type": "m.x",
            "message_id": "1",
            "messages": {ALICE: {"D": {"body": "x"}}},
        }
        edus = [{"edu_type": "m.direct_to_device", "content": content}]
        self.here.edus.errors.append(DatabaseAway(where="x", reason="y", seconds=1))
        with self.assertRaises(DatabaseAway):
            await self.here.receive([event], edus, txn_id="t")
        answer = await self.here.receive([event], edus, txn_id="t")
        self.assertEqual(answer, {event.event_id: {}})
        self.assertEqual([each[0] for each in self.here.edus.taken], ["to devices"])

    async def test_old_transactions_are_forgotten(self) -> None:
        await self.here.receive([], txn_id="old")
        self.sql(
            "UPDATE synrepl._received_transactions SET received_at = now() - interval '4 days'"
        )
        await self.here.receive([], txn_id="new")
        self.assertEqual(await self.here.sweeper.forget_old(), 1)
        self.assertEqual(self.sql("SELECT txn_id FROM synrepl._received_transactions"), "new")

    async def test_events_of_this_server_come_back_as_known(self) -> None:
        room = await self.shared_room()
        own = self.say(room, sender=ALICE)
        await self.store(room)
        self.assertEqual(own.sender.partition(":")[2], HERE)
        self.assertEqual(await self.here.receive([own]), {own.event_id: {}})
        self.assertEqual(self.here.inboxes.outcomes["known"], 1)
