"""Streams in tables and streams in memory behind one store."""

from __future__ import annotations

from collections.abc import Sequence

from twisted.trial.unittest import TestCase

from synrepl.core.tokens import Range
from synrepl.storage.memory.lease import MemoryLease
from synrepl.storage.memory.store import MemoryStore
from synrepl.storage.routed_store import RoutedStore
from synrepl.storage.store import AgedPositions, DatabaseAway, Draft, TrimResult, WriterTaken
from synrepl.streams.definition import Stream
from synrepl.streams.synapse.typing import TYPING, TypingRow
from tests.storage.samples import NOTES, note
from tests.storage.skipping_scheduler import SkippingScheduler


class RoutedStoreTests(TestCase):
    """Both sides are in memory here; the tests check which one is used."""

    def setUp(self) -> None:
        self.tables = MemoryStore(SkippingScheduler())
        self.memory = MemoryStore(SkippingScheduler())
        self.store = RoutedStore(self.tables, self.memory)

    async def last(self, store: MemoryStore) -> dict[str, int]:
        seen = await store.observe([NOTES, TYPING])
        return {name: observation.last for name, observation in seen.items()}

    async def test_routes_each_stream_by_where_it_is_kept(self) -> None:
        lease = await self.store.open_writer("w1", [NOTES, TYPING])
        typing = TypingRow("!r", ["@u:h"])
        await lease.append(NOTES, [Draft([[note("a")], [note("b")]])], 0)
        await lease.append(TYPING, [Draft([[typing]])], 0)
        self.assertEqual(await self.last(self.tables), {"notes": 2, "typing": 0})
        self.assertEqual(await self.last(self.memory), {"notes": 0, "typing": 1})
        seen = await self.store.observe([TYPING, NOTES])
        self.assertEqual({n: o.last for n, o in seen.items()}, {"notes": 2, "typing": 1})
        page = await self.store.page(TYPING, Range(0, 9), None, 10)
        self.assertEqual([fact.rows for fact in page.facts], [(typing,)])
        self.assertEqual(await self.store.reached(NOTES, Range(0, 9)), {"w1": 2})

    async def test_routes_reservations_to_the_store_of_the_stream(self) -> None:
        lease = await self.store.open_writer("w1", [NOTES, TYPING])
        tokens = await lease.reserve(TYPING, 1, 0)
        self.assertEqual(len((await self.holders())["typing"]), 1)
        await lease.release(TYPING, tokens)
        self.assertEqual(await self.holders(), {"notes": (), "typing": ()})

    async def holders(self) -> dict[str, tuple[object, ...]]:
        seen = await self.store.observe([NOTES, TYPING])
        return {name: observation.writers["w1"].holders for name, observation in seen.items()}

    async def test_the_name_is_lost_when_the_tables_lose_it(self) -> None:
        in_tables: list[MemoryLease] = []
        open_writer = self.tables.open_writer

        async def recorded_lease(writer: str, streams: Sequence[Stream]) -> MemoryLease:
            in_tables.append(await open_writer(writer, streams))
            return in_tables[-1]

        self.patch(self.tables, "open_writer", recorded_lease)
        lease = await self.store.open_writer("w1", [NOTES, TYPING])
        reasons: list[str] = []
        lease.on_lost(reasons.append)
        in_tables[0].crash("cut")
        self.assertEqual(reasons, ["cut"])
        with self.assertRaises(DatabaseAway):
            await lease.close()
        await self.store.open_writer("w1", [NOTES, TYPING])

    async def test_works_with_only_one_kind_of_stream(self) -> None:
        for stream in (NOTES, TYPING):
            lease = await self.store.open_writer("w1", [stream])
            lease.on_lost(self.fail)
            await lease.reserve(stream, 1, 0)
            await lease.close()

    async def test_a_name_taken_in_memory_is_not_kept_in_the_tables(self) -> None:
        await self.memory.open_writer("w1", [TYPING])
        with self.assertRaises(WriterTaken):
            await self.store.open_writer("w1", [NOTES, TYPING])
        await self.tables.open_writer("w1", [NOTES])

    async def test_records_positions_where_the_stream_is_kept(self) -> None:
        await self.store.open_writer("w1", [NOTES, TYPING])
        await self.store.record_positions(NOTES, 4, {"w1": 5})
        await self.store.record_positions(TYPING, 6, {"w1": 7})
        seen = await self.store.observe([NOTES, TYPING])
        self.assertEqual((seen["notes"].recorded, seen["typing"].recorded), (4, 6))
        await self.store.record_follower("f", {("typing", "w1"): 3})
        self.assertEqual(await self.tables.follower_positions("f"), {("typing", "w1"): 3})
        self.assertEqual(await self.store.follower_positions("f"), {("typing", "w1"): 3})

    async def test_leases_are_in_the_tables_and_hold_only_what_is_there(self) -> None:
        lease = await self.store.open_writer("w1", [NOTES, TYPING])
        await self.store.renew_lease("f", None, 60)
        for stream, row in ((NOTES, note("a")), (TYPING, TypingRow("!r", []))):
            await lease.append(stream, [Draft([[row]])], 0)
            await self.store.record_positions(stream, 1, {})
            self.assertEqual(await self.store.mark(stream, 0, 60), AgedPositions(1, 0))
        self.assertEqual(await self.store.trim(NOTES, 1, 0, 9), TrimResult(0, 0, "f"))
        self.assertEqual(await self.store.trim(TYPING, 1, 0, 9), TrimResult(1, 1, None))

    async def test_routes_fencing_to_the_store_of_the_stream(self) -> None:
        lease = await self.tables.open_writer("w1", [NOTES])
        lease.crash()
        self.assertTrue(await self.store.fence(NOTES, "w1"))
        self.assertFalse(await self.store.fence(TYPING, "w1"))
