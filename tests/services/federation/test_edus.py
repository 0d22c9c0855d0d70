"""EDUs of other servers: each for its own users and rooms, into the streams of this server."""

from __future__ import annotations

from typing import Any

from synrepl.federation.transactions import Edu
from synrepl.services.federation.inbound.edu_sinks import StreamSinks
from synrepl.services.federation.inbound.edus import MAX_IN_EDU, EduReceiver
from synrepl.services.rooms.client_data.presence import PresenceService
from synrepl.services.rooms.client_data.receipts import ReceiptService
from synrepl.services.rooms.client_data.stream_writers import DataWriters
from synrepl.services.rooms.client_data.to_device import ToDeviceService
from synrepl.services.rooms.client_data.typing import TypingService
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.clients.devices import Device, record_devices
from synrepl.storage.tables import ensure_tables
from synrepl.streams.definition import Stream
from synrepl.streams.synapse.device_lists import DEVICE_LISTS
from synrepl.streams.synapse.presence import PRESENCE
from synrepl.streams.synapse.receipts import RECEIPTS
from synrepl.streams.synapse.to_device import TO_DEVICE
from tests.services.federation.inbound_case import (
    ALICE,
    BOB,
    CAROL,
    HERE,
    OTHER,
    REMOTE,
    InboundCase,
)
from tests.services.world import NullLog
from tests.storage.rooms.store_case import IgnoringListener

STREAMS: tuple[Stream, ...] = (RECEIPTS, PRESENCE, TO_DEVICE, DEVICE_LISTS)


def edu(kind: str, **content: Any) -> dict[str, Any]:
    """An EDU."""
    return {"edu_type": kind, "content": content}


def receipts(room_id: str, user_id: str, event_id: str, **data: Any) -> dict[str, Any]:
    """An EDU with a receipt."""
    users = {user_id: {"event_ids": [event_id], "data": data}}
    return edu("m.receipt", **{room_id: {"m.read": users}})


class ReceivedEdus(InboundCase):
    """What passes, and what is ignored."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.room = await self.shared_room()

    async def taken(self, *edus: object) -> list[tuple[Any, ...]]:
        """What reaches the sinks of the EDUs of a transaction of Bob's server."""
        self.here.edus.taken.clear()
        await self.here.receive([], edus)
        return list(self.here.edus.taken)

    async def test_typing_of_users_of_the_server_in_rooms_of_both(self) -> None:
        room_id = self.room.room_id
        found = await self.taken(
            edu("m.typing", room_id=room_id, user_id=BOB, typing=True),
            edu("m.typing", room_id=room_id, user_id=CAROL, typing=True),
            edu("m.typing", room_id=room_id, user_id=ALICE, typing=True),
            edu("m.typing", room_id="!none:x", user_id=BOB, typing=True),
            edu("m.typing", room_id=3, user_id=BOB, typing=True),
            edu("m.typing", room_id=room_id, user_id=None),
            edu("m.typing", room_id=room_id, user_id=BOB),
        )
        expected = [("typing", BOB, room_id, True), ("typing", BOB, room_id, False)]
        self.assertEqual(found, expected)

    async def test_a_server_that_the_acl_denies_says_nothing_in_the_room(self) -> None:
        acl = {"allow": ["*"], "deny": [REMOTE]}
        denied = self.remote.send(self.room.room_id, "m.room.server_acl", BOB, acl, "")
        await self.here.receive([denied])
        room_id = self.room.room_id
        found = await self.taken(
            edu("m.typing", room_id=room_id, user_id=BOB, typing=True),
            receipts(room_id, BOB, "$e", ts=1),
        )
        self.assertEqual(found, [])

    async def test_receipts(self) -> None:
        room_id = self.room.room_id
        found = await self.taken(
            receipts(room_id, BOB, "$e", ts=17),
            receipts(room_id, BOB, "$f", ts=18, thread_id="main"),
            receipts(room_id, CAROL, "$e", ts=17),
            receipts("!none:x", BOB, "$e", ts=17),
            edu("m.receipt", **{room_id: {"m.read.private": {BOB: {"event_ids": ["$e"]}}}}),
            edu("m.receipt", **{room_id: {"m.read": {BOB: {"event_ids": [3]}}}}),
            edu("m.receipt", **{room_id: {"m.read": {BOB: {"event_ids": []}}}}),
            edu("m.receipt", **{room_id: {"m.read": {BOB: []}}}),
            edu("m.receipt", **{room_id: [], "x": 3}),
        )
        self.assertEqual(
            found,
            [
                ("receipt", room_id, "m.read", BOB, "$e", None, 17),
                ("receipt", room_id, "m.read", BOB, "$f", "main", 18),
            ],
        )

    async def test_of_very_many_receipts_in_one_edu_some_are_taken(self) -> None:
        users = {f"@{number}:{REMOTE}": {"event_ids": ["$e"]} for number in range(1100)}
        found = await self.taken(edu("m.receipt", **{self.room.room_id: {"m.read": users}}))
        self.assertEqual(len(found), MAX_IN_EDU)

    async def test_presence(self) -> None:
        push = [
            {"user_id": BOB, "presence": "online", "currently_active": True, "status_msg": "hi"},
            {"user_id": CAROL, "presence": "online"},
            {"user_id": f"@x:{REMOTE}", "presence": "dancing"},
            {"user_id": f"@y:{REMOTE}", "presence": "offline", "last_active_ago": "long"},
            "no user",
        ]
        ((_, *found),) = await self.taken(edu("m.presence", push=push))
        self.assertEqual(
            [(each.user_id, each.state, each.status_msg, each.currently_active) for each in found],
            [(BOB, "online", "hi", True), (f"@y:{REMOTE}", "offline", None, False)],
        )
        self.assertEqual(await self.taken(edu("m.presence", push="x"), edu("m.presence")), [])

    async def test_device_lists_and_messages_to_devices(self) -> None:
        message = {
            "sender": BOB,
            "type": "m.room_key",
            "message_id": "17",
            "messages": {ALICE: {"D": {"key": 1}, "E": "no message"}, "@x:y": 3},
        }
        found = await self.taken(
            edu("m.device_list_update", user_id=BOB, device_id="B", stream_id=3),
            edu("m.signing_key_update", user_id=BOB),
            edu("m.device_list_update", user_id=CAROL),
            edu("m.direct_to_device", **message),
            edu("m.direct_to_device", **{**message, "sender": CAROL}),
            edu("m.direct_to_device", **{**message, "message_id": None}),
        )
        to_devices = (
            "to devices",
            BOB,
            "m.room_key",
            {ALICE: {"D": {"key": 1}}},
            f"{REMOTE}\0{BOB}\x0017",
        )
        self.assertEqual(found, [("device list", BOB), ("device list", BOB), to_devices])

    async def test_unknown_types_are_ignored_and_counted(self) -> None:
        self.assertEqual(await self.taken(edu("org.example.x"), edu("m.typing")), [])
        outcomes = self.here.receiver_edus.outcomes
        self.assertEqual(outcomes, {("other", "ignored"): 1, ("m.typing", "refused"): 1})


class StreamsCase(InboundCase):
    """A process that writes the streams of what clients are told."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.room = await self.shared_room()
        await self.database.run("tables", lambda txn: ensure_tables(txn, STREAMS) and None)
        data = self.process("data")
        writer = StreamWriter(
            data.scheduler,
            data.store,
            "data",
            STREAMS,
            IgnoringListener(),  # type: ignore[arg-type]
            NullLog(),
        )
        await writer.start()
        self.addCleanup(writer.stop)
        names = {stream.name: ["data"] for stream in STREAMS}
        writers = DataWriters("data", writer, names, self.here, self.here.actions)
        scheduler, database = data.scheduler, data.database
        sinks = StreamSinks(
            writers,
            TypingService(scheduler, database, writers, NullLog()),
            ReceiptService(scheduler, writers),
            PresenceService(scheduler, database, writers, NullLog()),
            ToDeviceService(HERE, False, writers, NullLog()),
        )
        self.edus = EduReceiver(scheduler, sinks, self.here.admission, NullLog())

    async def receive(self, *edus: dict[str, Any]) -> None:
        """Take in EDUs."""
        await self.edus.receive(REMOTE, [Edu(each["edu_type"], each["content"]) for each in edus])


class EdusIntoStreams(StreamsCase):
    """What becomes a fact."""

    async def test_each_edu_is_a_fact_of_its_stream(self) -> None:
        await self.database.run("devices", lambda txn: record_devices(txn, [Device(ALICE, "D")]))
        event = self.say(self.room)
        await self.here.receive([event])
        message = {
            "sender": BOB,
            "type": "m.room_key",
            "message_id": "17",
            "messages": {ALICE: {"*": {"key": 1}}},
        }
        push = [{"user_id": BOB, "presence": "online", "currently_active": True}]
        await self.receive(
            receipts(self.room.room_id, BOB, event.event_id, ts=17),
            edu("m.presence", push=push),
            edu("m.device_list_update", user_id=BOB),
            edu("m.direct_to_device", **message),
            edu("m.direct_to_device", **message),
            edu("m.typing", room_id=self.room.room_id, user_id=BOB, typing=True),
        )
        self.assertEqual(
            {
                kind: count
                for (kind, outcome), count in self.edus.outcomes.items()
                if outcome == "taken"
            },
            {"m.receipt": 1, "m.presence": 1, "m.device_list_update": 1, "m.direct_to_device": 2},
        )
        rows = {
            "receipts": "user_id || event_id",
            "presence": "user_id || state",
            "device_lists": "entity",
            "to_device": "entity",
        }
        found = {
            name: self.sql(f"SELECT json_agg({column}) FROM synrepl.{name}")
            for name, column in rows.items()
        }
        self.assertEqual(
            found,
            {
                "receipts": [BOB + event.event_id],
                "presence": [f"{BOB}online"],
                "device_lists": [BOB],
                "to_device": [ALICE],
            },
        )

    async def test_a_receipt_of_somebody_who_is_not_in_the_room_is_ignored(self) -> None:
        await self.receive(receipts(self.room.room_id, f"@nobody:{REMOTE}", "$e", ts=1))
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl.receipts"), 0)


class EdusIntoPartialRooms(StreamsCase):
    """A room of which this server knows the memberships of few, and that the other server was in it."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.sql(
            "INSERT INTO synrepl._partial_rooms (room_no, epoch, join_event_id, joined_via)"
            " SELECT room_no, epoch, '$x', %s FROM synrepl._rooms",
            REMOTE,
        )
        self.sql(
            "INSERT INTO synrepl._partial_room_servers (room_no, server_name)"
            " SELECT room_no, %s FROM synrepl._rooms",
            REMOTE,
        )

    def users_with_receipts(self) -> list[str] | None:
        found: list[str] | None = self.sql("SELECT array_agg(user_id) FROM synrepl.receipts")
        return found

    async def test_receipts_of_members_who_are_not_known_count(self) -> None:
        early = f"@early:{REMOTE}"
        await self.receive(receipts(self.room.room_id, early, "$e", ts=1))
        self.assertEqual(self.users_with_receipts(), [early])

    async def test_receipts_of_users_who_are_known_to_have_left_do_not(self) -> None:
        left, room_id = f"@left:{REMOTE}", self.room.room_id
        for membership in ("join", "leave"):
            content = {"membership": membership}
            event = self.remote.send(room_id, "m.room.member", left, content, left)
            await self.here.receive([event])
        await self.receive(receipts(room_id, left, "$e", ts=1))
        self.assertIsNone(self.users_with_receipts())

    async def test_users_of_servers_that_were_not_in_the_room_have_none(self) -> None:
        each = receipts(self.room.room_id, CAROL, "$e", ts=1)
        await self.edus.receive(OTHER, [Edu(each["edu_type"], each["content"])])
        self.assertIsNone(self.users_with_receipts())
