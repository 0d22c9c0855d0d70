"""What a worker knows of the positions of all writers together, and of tokens that other processes gave out."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from simulator.rooms.random_rooms import EventMaker
from synrepl.positions.vector import PositionVector
from synrepl.services.following.possible_tokens import PossibleTokens
from synrepl.services.rooms.news.applied_vectors import AppliedVectors
from synrepl.services.rooms.news.linear_positions import LinearPositions
from synrepl.services.rooms.news.sync_token import SyncToken, server_tag
from synrepl.services.rooms.news.token_wait import (
    NotYetApplied,
    SyncTokenFromFuture,
    TokenWait,
    WorkerGivenOut,
)
from synrepl.streams.synapse.events import EVENTS
from tests.services.world import NullLog
from tests.storage.rooms.store_case import StoreCase


class WorkerPositions(StoreCase):
    """Two processes have written events, and a third one follows them."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.two = await self.start_process("two")
        self.last_one = await self.write(self.one, "first")
        self.last_two = await self.write(self.two, "second")
        process = self.process("worker")
        self.scheduler: Any = process.scheduler
        self.applied = AppliedVectors(self.scheduler, "a")
        self.unknown: list[tuple[str, str, int]] = []
        self.linear = LinearPositions(
            self.scheduler,
            process.database,
            ["events"],
            self.applied,
            lambda *told: self.unknown.append(told),
            NullLog(),
        )
        tokens = PossibleTokens(self.scheduler, process.store, NullLog())
        self.covered = TokenWait(
            self.scheduler, self.applied, WorkerGivenOut(tokens, process.store), 10.0
        )

    async def write(self, process: Any, name: str) -> int:
        """Have a process persist an event; its token."""
        create = EventMaker("10", name).create
        done = await process.persist(create.room_id, create.version, [create])
        return int(done.events[0].stream_id)

    async def record(self) -> None:
        """Record the positions, as a master does."""
        positions = {"one": self.last_one, "two": self.last_two}
        await self.one.process.store.record_positions(EVENTS, self.last_two, positions)

    @property
    def events(self) -> PositionVector:
        """The positions of the worker."""
        return self.applied.current().events

    def token(self, **vector: Any) -> SyncToken:
        """A token of the stream of events."""
        return SyncToken.of(server_tag("a"), {"events": PositionVector(**vector)})

    async def test_it_begins_at_the_recorded_positions(self) -> None:
        await self.record()
        await self.linear.start()
        self.assertEqual(self.events, PositionVector(linear=self.last_two))
        self.assertIn(("events", "", self.last_two), self.unknown)

    async def test_the_linear_position_is_reached_once_all_writers_are_there(self) -> None:
        await self.record()
        await self.linear.look()
        self.assertEqual(self.applied.linear("events"), 0)
        self.applied.moved("events", "two", self.last_two + 5)
        await self.linear.look()
        # It may not have heard of the other one yet.
        self.assertEqual(self.applied.linear("events"), 0)
        self.applied.moved("events", "one", self.last_one)
        await self.linear.look()
        self.assertEqual(
            self.events, PositionVector({"two": self.last_two + 5}, linear=self.last_two)
        )

    async def test_a_linear_position_is_waited_for_with_each_writer(self) -> None:
        self.applied.moved("events", "two", self.last_two)
        waiting = Deferred.fromCoroutine(
            self.covered.until_covered(self.token(linear=self.last_two))
        )
        while not len(self.applied.waiters):
            await self.scheduler.sleep(0.005)
        self.assertNoResult(waiting)
        self.applied.moved("events", "one", self.last_one)
        await waiting

    async def test_what_no_process_gave_out_is_refused_and_what_is_late_is_not(self) -> None:
        self.covered.timeout_s = 0.0
        self.applied.moved("events", "two", self.last_two)
        for late in (
            self.token(linear=self.last_two),
            self.token(writers={"one": self.last_one}),
        ):
            with self.assertRaises(NotYetApplied):
                await self.covered.until_covered(late)
        for future in (
            self.token(linear=self.last_two + 1_000),
            self.token(writers={"three": self.last_two + 1_000}),
        ):
            with self.assertRaises(SyncTokenFromFuture):
                await self.covered.until_covered(future)
        self.applied.moved("events", "one", self.last_one)
        await self.covered.until_covered(self.token(linear=self.last_two))
