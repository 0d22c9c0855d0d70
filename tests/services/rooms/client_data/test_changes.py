"""What changes clients' data: its limits, who carries it out, and what is shown of it."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, gatherResults

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.positions.vector import PositionVector
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.forwarding import WriterUnreachable
from synrepl.services.rooms.client_data.data import ClientData, DataRooms
from synrepl.services.rooms.client_data.data_reader import ClientDataReader
from synrepl.services.rooms.client_data.device_registry import (
    GATHER_S,
    RECORD_EVERY_S,
    DeviceRegistry,
)
from synrepl.services.rooms.client_data.ignored_users import ignored_in
from synrepl.services.rooms.client_data.stream_writers import StreamNotServed
from synrepl.services.rooms.client_data.typing_users import TypingRooms
from synrepl.services.rooms.news.news import ANY_NEWS, News
from synrepl.services.rooms.news.sync_token import SyncToken, server_tag
from synrepl.services.rooms.timelines.updates import TimelineReader
from synrepl.storage import membership
from synrepl.storage.clients import account_data, devices, receipts, to_device
from synrepl.storage.clients.devices import devices_of, forget_old_devices
from synrepl.storage.clients.receipts import EventNotInRoom, NotAMember
from synrepl.storage.clients.to_device import forget_requests
from synrepl.storage.database import Transaction
from synrepl.streams.definition import Fact
from synrepl.streams.synapse.typing import TypingRow
from tests.services.rooms.client_data.data_case import ClientDataCase
from tests.services.rooms.sending_case import ALICE, BOB, CAROL
from tests.services.world import NullLog, manual_clock

_EVERYTHING = PositionVector(linear=1 << 60)


class ChangesCase(ClientDataCase):
    """Changes, and what is told of them."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.plain = self.connect()

    async def told(
        self,
        identity: ClientIdentity,
        *rooms: str,
        since: SyncToken | None = None,
        news: News = ANY_NEWS,
        typing: TypingRooms | None = None,
    ) -> ClientData:
        """What a device is told, of everything."""
        reader, tag = ClientDataReader(typing or TypingRooms()), server_tag("test")
        upto = SyncToken(tag, *[_EVERYTHING] * 6)
        told = DataRooms(rooms, rooms if since is None else ())
        return await self.read(
            lambda txn: reader.read(txn, TimelineReader(*identity), since, upto, news, told)
        )

    def count(self, table: str) -> int:
        """Number of rows of a table."""
        return int(self.sql(f"SELECT count(*) FROM synrepl.{table}", on=self.plain))


class Writers(ChangesCase):
    """Which process carries out what."""

    async def test_another_writer_is_asked_if_one_is_away(self) -> None:
        asking = self.data["d3"]
        for name in ("d1", "d2"):
            self.data[name].away = True
            for number in range(4):  # whichever it prefers for a key
                fact = await asking.account_data.set(f"@u{number}:test", None, "t", {"n": name})
                assert fact is not None
                self.assertNotEqual(fact.writer, name)
            self.data[name].away = False
        for each in self.data.values():
            each.away = True
        with self.assertRaises(WriterUnreachable):
            await asking.account_data.set(ALICE.user_id, None, "t", {})

    async def test_a_process_that_is_drained_asks_another_one(self) -> None:

        def drain(txn: Transaction) -> None:
            membership.drain(txn, "account_data", "d1")
            membership.conclude_drain(txn, "account_data", "d1")

        await self.database.run("drain", drain)
        fact = await self.data["d1"].account_data.set(ALICE.user_id, None, "t", {})
        assert fact is not None
        self.assertEqual(fact.writer, "d2")

    async def test_refusals_cross_the_boundary_and_are_not_tried_elsewhere(self) -> None:
        event = await self.say(self.room_id)
        asking = self.data["d3"].receipts
        with self.assertRaises(NotAMember):
            await asking.send(CAROL.user_id, self.room_id, "m.read", event)
        with self.assertRaises(EventNotInRoom):
            await asking.send(ALICE.user_id, self.room_id, "m.read", "$x")

    async def test_changes_at_once_leave_the_last_one(self) -> None:
        calls = [
            self.data[name].account_data.set_tag(ALICE.user_id, self.room_id, f"u.{n}", {"n": n})
            for n, name in enumerate(("d1", "d2", "d3") * 4)
        ]
        facts = await gatherResults([Deferred.fromCoroutine(each) for each in calls])
        self.assertEqual(len({fact.token for fact in facts}), 12)
        tags = await self.data["d1"].account_data.tags(ALICE.user_id, self.room_id)
        self.assertEqual(sorted(tags), sorted(f"u.{n}" for n in range(12)))
        last = max(facts, key=lambda fact: fact.token)
        stored = self.sql("SELECT stream_id FROM synrepl._account_data WHERE type = 'm.tag'")
        self.assertEqual(stored, last.token)
        # Older followers get the tags themselves.
        rows = self.sql("SELECT data FROM synrepl.tag_account_data ORDER BY stream_id DESC LIMIT 1")
        self.assertEqual(set(rows["tags"]), set(tags))

    async def test_of_receipts_at_once_the_furthest_is_left(self) -> None:
        events = [await self.say(self.room_id) for _ in range(9)]
        calls = [
            self.data[name].receipts.send(ALICE.user_id, self.room_id, "m.read", event)
            for name, event in zip(("d1", "d2", "d3") * 3, reversed(events), strict=True)
        ]
        await gatherResults([Deferred.fromCoroutine(each) for each in calls])
        stored = self.sql("SELECT event_id FROM synrepl._receipts")
        self.assertEqual(stored, events[-1])

    async def test_a_stream_that_is_not_served_is_named(self) -> None:
        process = self.data["d3"]
        process.writers = type(process.writers)("d3", None, {}, process, process.actions)
        service = type(process.account_data)(process.database, process.writers)
        with self.assertRaisesRegex(StreamNotServed, "account_data"):
            await service.set(ALICE.user_id, None, "t", {})


class Bounds(ChangesCase):
    """Limits of what is stored."""

    async def test_entries_of_account_data_are_limited(self) -> None:
        service = self.data["d1"].account_data
        self.patch(account_data, "MAX_TYPES", 2)
        self.patch(account_data, "MAX_ENTRIES", 3)
        for room_id, kind in ((None, "a"), (None, "b"), ("!1:x", "a")):
            await service.set(ALICE.user_id, room_id, kind, {})
        for room_id, kind in ((None, "c"), ("!2:x", "a")):
            with self.assertRaises(account_data.TooMuchAccountData):
                await service.set(ALICE.user_id, room_id, kind, {})
        await service.set(ALICE.user_id, None, "b", {"changed": 1})
        await service.set(BOB.user_id, None, "c", {})

    async def test_the_oldest_receipts_of_many_threads_go(self) -> None:
        self.patch(receipts, "MAX_RECEIPTS_OF_USER", 3)
        events = [await self.say(self.room_id) for _ in range(6)]
        for event in events:
            await self.data["d1"].receipts.send(ALICE.user_id, self.room_id, "m.read", event, event)
        found = await self.told(BOB, self.room_id)
        told = {each.thread_id for each in found.rooms[self.room_id].receipts}
        self.assertEqual(told, set(events[3:]))

    async def test_the_oldest_messages_to_a_device_go(self) -> None:
        self.patch(to_device, "MAX_WAITING_MESSAGES", 3)
        await self.know(ALICE, BOB)
        for number in range(6):
            contents: Any = {BOB.user_id: {"*": {"n": number}}}
            if number == 2:
                contents[ALICE.user_id] = {"*": {}}
            await self.data["d1"].to_device.send(ALICE.user_id, "t", contents, str(number))
        self.assertEqual([m[16] for m in (await self.told(BOB)).to_device], [*b"345"])
        self.assertEqual(len((await self.told(ALICE)).to_device), 1)

    async def test_the_devices_that_synced_longest_ago_are_forgotten(self) -> None:
        self.patch(devices, "MAX_DEVICES", 2)
        for number in range(4):
            await self.know(ClientIdentity(BOB.user_id, f"D{number}"))
            await self.data["d1"].to_device.send(
                ALICE.user_id, "t", {BOB.user_id: {f"D{number}": {}}}, str(number)
            )
        found = await self.read(lambda txn: devices_of(txn, [BOB.user_id]))
        self.assertEqual(found, {BOB.user_id: {"D2", "D3"}})
        self.assertEqual(self.count("_to_device"), 2)
        self.sql("UPDATE synrepl._client_devices SET seen_at = now() - interval '1 day'")
        await self.know(ClientIdentity(BOB.user_id, "D3"))
        forgotten = await self.read(lambda txn: forget_old_devices(txn, 3600, 10))
        self.assertEqual((forgotten, self.count("_to_device")), (1, 1))
        self.assertEqual(await self.read(lambda txn: forget_requests(txn, 3600, 10)), 0)
        self.assertEqual(await self.read(lambda txn: forget_requests(txn, -1, 10)), 4)


class Telling(ChangesCase):
    """What is told to whom."""

    async def test_users_of_other_servers_have_receipts_whose_events_come_later(self) -> None:
        service = self.data["d1"].receipts
        self.sql(
            "INSERT INTO synrepl._memberships SELECT event_no, stream_id, room_no, '@far:away',"
            " membership FROM synrepl._memberships WHERE user_id = %s",
            ALICE.user_id,
        )
        await service.send("@far:away", self.room_id, "m.read", "$later", ts=5, is_foreign=True)
        found = await self.told(BOB, self.room_id)
        (told,) = found.rooms[self.room_id].receipts
        self.assertEqual((told.user_id, told.event_id, told.ts), ("@far:away", "$later", 5))

    async def test_who_left_is_told_no_receipts_any_more(self) -> None:
        event = await self.say(self.room_id)
        since = SyncToken(server_tag("test"))
        await self.data["d1"].receipts.send(ALICE.user_id, self.room_id, "m.read", event)
        self.assertTrue((await self.told(BOB, self.room_id, since=since)).rooms)
        await self.changes.set_own_membership(BOB, self.room_id, "leave", {})
        self.assertEqual((await self.told(BOB, self.room_id, since=since)).rooms, {})

    async def test_only_what_may_be_new_is_read(self) -> None:
        event = await self.say(self.room_id)
        since = SyncToken(server_tag("test"))
        await self.know(BOB)
        await self.data["d1"].receipts.send(ALICE.user_id, self.room_id, "m.read", event)
        await self.data["d1"].receipts.send(BOB.user_id, self.room_id, "m.read.private", event)
        await self.data["d1"].account_data.set(BOB.user_id, None, "t", {})
        await self.data["d1"].to_device.send(ALICE.user_id, "t", {BOB.user_id: {"*": {}}}, "1")
        for news, expected in (
            (News(), (0, [], 0)),
            (News(receipts=frozenset({self.room_id})), (0, ["m.read", "m.read.private"], 0)),
            (News(receipts=frozenset({"!other:x"})), (0, [], 0)),
            (News(private_receipts=True), (0, ["m.read.private"], 0)),
            (News(account_data=True), (1, [], 0)),
            (News(to_device=True), (0, [], 1)),
        ):
            data = await self.told(BOB, self.room_id, since=since, news=news)
            room = data.rooms.get(self.room_id)
            types = [] if room is None else sorted(each.receipt_type for each in room.receipts)
            self.assertEqual((len(data.account_data), types, len(data.to_device)), expected, news)

    async def test_typing_is_told_where_it_may_have_changed(self) -> None:
        typing = TypingRooms()
        other = await self.another_room()
        rows = [TypingRow(self.room_id, ["@b:test"]), TypingRow("!third:x", ["@b:test"])]
        typing.applied("typing", "w", [Fact(1, "w", tuple(rows))])
        since = SyncToken(server_tag("test"))
        news = News(typing=frozenset({self.room_id, other, "!third:x"}))
        rooms = (self.room_id, other)
        data = await self.told(ALICE, *rooms, since=since, news=news, typing=typing)
        found = {room_id: room.typing for room_id, room in data.rooms.items()}
        self.assertEqual(found, {self.room_id: ["@b:test"], other: []})
        data = await self.told(ALICE, *rooms, typing=typing)
        self.assertEqual(set(data.rooms), {self.room_id})
        # The process may have told of a room before it told that it is new.
        data = await self.told(ALICE, *rooms, news=news, typing=typing)
        self.assertEqual({r: room.typing for r, room in data.rooms.items()}, found)
        # The writer starts again: nobody types any more, also where it cannot say so.
        typing.unknown_upto("typing", "w", 0)
        data = await self.told(ALICE, *rooms, since=since, news=News(typing=None), typing=typing)
        self.assertEqual({r: room.typing for r, room in data.rooms.items()}, {self.room_id: []})
        typing.applied("typing", "w", [Fact(1, "w", (TypingRow(self.room_id, []),))])
        typing.unknown_upto("typing", "w", 0)
        self.assertEqual(len(typing), 0)

    def test_a_list_of_ignored_users_of_any_form_is_read(self) -> None:
        for content, expected in (
            (None, set()),
            (b"{}", set()),
            (b'{"ignored_users":[]}', set()),
            (b'{"ignored_users":{"@a:x":{},"@b:x":1}}', {"@b:x"}),
        ):
            self.assertEqual(ignored_in(content, "@a:x"), expected)


class Registry(ChangesCase):
    """Which devices are on record."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.clock = manual_clock()
        scheduler = TwistedScheduler(self.clock)
        self.addCleanup(scheduler.stop)
        self.registry = DeviceRegistry(scheduler, self.database, NullLog())
        self.start = PositionVector()

    async def known(self) -> set[str]:
        """Bob's devices on record."""
        found = await self.read(lambda txn: devices_of(txn, [BOB.user_id]))
        return found.get(BOB.user_id, set())

    async def test_a_device_is_on_record_before_its_first_sync_is_answered(self) -> None:
        await self.registry.begins(BOB)
        self.assertEqual(await self.known(), {"B"})

    async def test_later_syncs_are_recorded_together_once_a_day(self) -> None:
        identities = [ClientIdentity(BOB.user_id, f"D{number}") for number in range(3)]
        for _ in range(3):
            for each in identities:
                self.registry.syncs(each, self.start)
        self.assertEqual(await self.known(), set())
        self.clock.advance(GATHER_S)
        while await self.known() != {"D0", "D1", "D2"}:
            await self.tick()
        self.sql("UPDATE synrepl._client_devices SET seen_at = 'epoch'")
        for each in identities:
            self.registry.syncs(each, self.start)
        self.assertFalse(self.clock.getDelayedCalls())
        self.clock.advance(RECORD_EVERY_S)
        self.registry.syncs(identities[0], self.start)
        self.clock.advance(GATHER_S)
        while self.sql("SELECT max(seen_at) = 'epoch' FROM synrepl._client_devices", on=self.plain):
            await self.tick()
        old = self.sql("SELECT count(*) FROM synrepl._client_devices WHERE seen_at = 'epoch'")
        self.assertEqual(old, 2)

    async def test_messages_are_deleted_when_the_next_token_acknowledges_them(self) -> None:
        await self.registry.begins(BOB)
        fact = await self.data["d1"].to_device.send(
            ALICE.user_id, "t", {BOB.user_id: {"*": {}}}, "1"
        )
        assert fact is not None
        position = PositionVector({fact.writer: fact.token})
        self.registry.told(BOB, position)
        self.registry.syncs(BOB, PositionVector({fact.writer: fact.token - 1}))
        self.assertEqual(self.count("_to_device"), 1)
        self.registry.syncs(BOB, position)
        while self.count("_to_device"):
            await self.tick()
