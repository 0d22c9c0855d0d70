"""Connections that are killed at each write while events of others are taken in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from synrepl.core.errors import SynreplError
from synrepl.rooms import Event
from tests.services.federation.connection_killer import ConnectionKiller
from tests.services.federation.inbound_case import InboundCase, InboundProcess

#: No transaction has as many writes.
MOST = 120


class Kills(InboundCase):
    """Whatever is killed, each event is taken once, and a repeated transaction gets one answer."""

    timeout = 600

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.two: InboundProcess = self.inbound(await self.start_process("two"), persists=False)
        self.two.others["one"] = self.here
        self.room = await self.shared_room()
        self.killer = ConnectionKiller(self.sql)

    async def persistently(self, step: Callable[[], Awaitable[Any]]) -> Any:
        """Repeat a step until it succeeds, as another server does."""
        for _ in range(20):
            try:
                return await step()
            except SynreplError:
                continue
        self.fail("it never succeeds")

    async def each_write(self, scenario: Callable[[int], Awaitable[None]]) -> None:
        """Run a scenario again and again, killed at its first write, then at the second, and so on."""
        for number in range(MOST):
            self.killer.arm(number)
            await scenario(number)
            if not self.killer.has_killed:
                self.assertGreater(number, 5)
                return
        self.fail("there is no end of writes")

    def assert_taken_once(self, events: list[Event]) -> None:
        """Each event is accepted, with one fact."""
        for each in events:
            self.assertEqual(self.stored(each), "accepted")
            facts = "SELECT count(*) FROM synrepl.events WHERE kind = 'ev' AND event_id = %s"
            self.assertEqual(self.sql(facts, each.event_id), 1)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._staged_events"), 0)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._waiting_events"), 0)

    async def test_a_transaction_is_taken_in_once(self) -> None:
        async def scenario(number: int) -> None:
            sent = [self.say(self.room, f"{number}")]
            topic = {"topic": f"{number}"}
            sent.append(self.remote.send(self.room.room_id, "m.room.topic", self.bob, topic, ""))
            txn_id = f"t{number}"
            first = await self.persistently(lambda: self.here.receive(sent, txn_id=txn_id))
            again = await self.here.receive(sent, txn_id=txn_id)
            self.assertEqual(again, first)
            self.assert_taken_once(sent)

        await self.each_write(scenario)
        await self.check_equal(self.room.room, orders=False)

    async def test_staged_events_are_judged_once(self) -> None:
        async def scenario(number: int) -> None:
            sent = [self.say(self.room, f"{number} {part}") for part in range(2)]
            txn_id = f"t{number}"
            await self.persistently(lambda: self.two.receive(sent, txn_id=txn_id))
            while self.sql("SELECT count(*) FROM synrepl._staged_events"):
                await self.settled()
                await self.persistently(self.here.sweeper.wake_staged)
                await self.settled()
            self.assert_taken_once(sent)

        await self.each_write(scenario)
        await self.check_equal(self.room.room, orders=False)

    async def test_gaps_are_filled(self) -> None:
        async def scenario(number: int) -> None:
            sent = [self.say(self.room, f"{number} {part}") for part in range(4)]
            txn_id = f"t{number}"
            await self.persistently(lambda: self.here.receive(sent[-1:], txn_id=txn_id))
            await self.settled()
            while self.sql("SELECT count(*) FROM synrepl._waiting_events"):
                await self.persistently(self.here.sweeper.look_for_gaps)
                await self.settled()
            self.assert_taken_once(sent)

        await self.each_write(scenario)
        await self.check_equal(self.room.room, orders=False)

    @property
    def bob(self) -> str:
        """Who speaks."""
        return f"@bob:{self.remote.name}"
