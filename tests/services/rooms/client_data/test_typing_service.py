"""Users who type, in the process that writes the stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.forwarding import NoOtherWriters, WriterActions
from synrepl.services.rooms.client_data import typing
from synrepl.services.rooms.client_data.stream_writers import DataWriters
from synrepl.services.rooms.client_data.typing import LONGEST_TYPING_S, TooManyType, TypingService
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.clients.receipts import NotAMember
from synrepl.storage.memory.store import MemoryStore
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.synapse.typing import TYPING
from tests.services.rooms.sending_case import ALICE, BOB, CAROL, SendingServiceCase
from tests.services.world import NullLog, manual_clock
from tests.storage.rooms.store_case import IgnoringListener


class SettledTyping(IgnoringListener):
    """Records what is told.

    :ivar told: rooms with those who type there
    """

    def __init__(self) -> None:
        self.told: list[tuple[str, list[str]]] = []

    def settled(self, stream: Stream, tokens: Sequence[int], facts: Sequence[Fact]) -> None:
        """Record rows."""
        for fact in facts:
            row: Any
            for row in fact.rows:
                self.told.append((row.room_id, row.user_ids))


class TypingServices(SendingServiceCase):
    """A service under a clock of the test's; Alice and Bob are in the room."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.clock = manual_clock()
        scheduler = TwistedScheduler(self.clock)
        self.addCleanup(scheduler.stop)
        self.listener = SettledTyping()
        listener: Any = self.listener
        writer = StreamWriter(scheduler, MemoryStore(scheduler), "w", [TYPING], listener, NullLog())
        await writer.start()
        actions = WriterActions(())
        writers = DataWriters("w", writer, {"typing": ["w"]}, NoOtherWriters(), actions)
        self.service = TypingService(scheduler, self.database, writers, NullLog())
        self.room_id = await self.create(preset="public_chat")
        await self.changes.join(BOB, self.room_id, {})

    async def type(self, user: ClientIdentity, timeout_s: float = 30.0) -> None:
        await self.service.set(user.user_id, self.room_id, timeout_s > 0, timeout_s)

    def told(self, seconds: float = 0.0) -> list[list[str]]:
        """Who typed in the room, as it was told, after some time."""
        left = seconds
        while left > 0:
            self.clock.advance(min(0.5, left))
            left -= 0.5
        found, self.listener.told = self.listener.told, []
        return [users for _, users in found]

    async def test_each_change_is_told_once(self) -> None:
        a, b = ALICE.user_id, BOB.user_id
        await self.type(ALICE)
        await self.type(ALICE)
        await self.type(BOB)
        self.assertEqual(self.told(), [[a], [a, b]])
        await self.type(ALICE, 0)
        await self.type(ALICE, 0)
        self.assertEqual(self.told(), [[b]])

    async def test_typing_ends_and_goes_on_by_being_repeated(self) -> None:
        a, b = ALICE.user_id, BOB.user_id
        await self.type(ALICE, 30)
        await self.type(BOB, 10)
        self.assertEqual(self.told(9), [[a], [a, b]])
        self.assertEqual(self.told(2), [[a]])
        await self.type(ALICE, 30)
        self.assertEqual(self.told(25), [])
        self.assertEqual(self.told(6), [[]])
        self.assertEqual(self.told(100), [])
        self.assertFalse(self.clock.getDelayedCalls())

    async def test_nobody_types_for_longer_than_the_longest_time(self) -> None:
        await self.type(ALICE, 1e9)
        self.assertEqual(self.told(LONGEST_TYPING_S + 1), [[ALICE.user_id], []])

    async def test_a_shorter_time_counts(self) -> None:
        await self.type(ALICE, 60)
        await self.type(ALICE, 2)
        self.assertEqual(self.told(3), [[ALICE.user_id], []])

    async def test_who_types_is_bounded(self) -> None:
        self.patch(typing, "MAX_TYPING_IN_ALL", 1)
        await self.type(ALICE)
        with self.assertRaises(TooManyType):
            await self.type(BOB)
        await self.type(ALICE, 0)
        await self.type(BOB)
        self.patch(typing, "MAX_TYPING", 1)
        self.patch(typing, "MAX_TYPING_IN_ALL", 10)
        await self.type(ALICE)
        self.assertEqual(self.told()[-1], [BOB.user_id])

    async def test_only_members_type(self) -> None:
        with self.assertRaises(NotAMember):
            await self.type(CAROL)

    async def test_members_of_other_servers_who_are_not_known_type_in_a_partial_room(self) -> None:
        for statement in (
            "INSERT INTO synrepl._partial_rooms (room_no, epoch, join_event_id, joined_via)"
            " SELECT room_no, epoch, '$x', 'far' FROM synrepl._rooms",
            "INSERT INTO synrepl._partial_room_servers (room_no, server_name)"
            " SELECT room_no, 'far' FROM synrepl._rooms",
        ):
            self.sql(statement)
        await self.service.set("@early:far", self.room_id, True, is_foreign=True)
        self.assertEqual(self.told(), [["@early:far"]])
        for user, is_foreign in (("@early:far", False), ("@who:else", True)):
            with self.assertRaises(NotAMember):
                await self.service.set(user, self.room_id, True, is_foreign=is_foreign)
