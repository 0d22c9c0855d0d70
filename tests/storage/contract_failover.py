"""The contract of every store whose server was promoted and lacks facts.

Mix :class:`FailoverContract` into a test case that has :class:`~.contract.FactStoreContract`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from synrepl.core.tokens import Range, Token
from synrepl.storage.incarnations import MARGIN
from synrepl.storage.store import Draft, FactsLost, Fenced, NotConfirmed, Page
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.synapse.backfill import BACKFILL, BackfillRow
from tests.storage.contract import EVERY, FactStoreContract
from tests.storage.samples import NOTES, note, rows_of

if TYPE_CHECKING:
    Base = FactStoreContract
else:
    Base = object


class FailoverContract(Base):
    """The tests. Implementations override the methods that raise NotImplementedError."""

    async def promote(self, lacks: Stream, above: Token) -> None:
        """Promote another server, which lacks the facts of a stream above a token."""
        raise NotImplementedError

    async def fail_over(self, announced: int = 10, recorded: int = 4) -> list[Token]:
        """Fail over after writer w1 announced facts that the new server lacks; return the tokens."""
        lease = await self.lease("w1")
        tokens = await self.append(lease, *([note(str(n))] for n in range(announced)))
        await self.store.record_positions(NOTES, 0, {"w1": tokens[recorded - 1]})
        await self.promote(NOTES, tokens[recorded + 1])
        return tokens

    async def page(self, span: Range, writer: str | None = "w1") -> Page:
        return await self.store.page(NOTES, span, writer, 1_000)

    async def test_nothing_is_written_on_a_server_that_is_not_confirmed(self) -> None:
        lease = await self.lease("w1")
        await self.append(lease, [note("a")])
        reserved = await lease.reserve(NOTES, 1, 0)
        await self.promote(NOTES, EVERY)
        with self.assertRaises(NotConfirmed):
            await lease.append(NOTES, [Draft([[note("b")]])], 0)
        with self.assertRaises(NotConfirmed):
            await lease.reserve(NOTES, 1, 0)
        with self.assertRaises(NotConfirmed):
            await lease.write(NOTES, [Fact(reserved[0], "w1", (note("c"),))])
        with self.assertRaises(NotConfirmed):
            await (await self.make_store("other")).open_writer("w2", [NOTES])

    async def test_does_not_record_positions_from_another_server(self) -> None:
        await self.append(await self.lease("w1"), [note("a")])
        await self.promote(NOTES, EVERY)
        with self.assertRaises(NotConfirmed):
            await self.store.record_positions(NOTES, 1, {"w1": 1})
        with self.assertRaises(NotConfirmed):
            await self.store.record_follower("f1", {("notes", "w1"): 1})
        with self.assertRaises(NotConfirmed):
            await self.store.observe([NOTES])

    async def test_confirming_advances_beyond_everything_announced(self) -> None:
        tokens = await self.fail_over()
        self.assertEqual(await self.store.confirm({}), 2)
        seen = await self.look()
        self.assertEqual(seen.incarnation, 2)
        self.assertGreaterEqual(seen.floor, tokens[5] + MARGIN)
        self.assertEqual((seen.recorded, seen.writers["w1"].position), (seen.floor, seen.floor))
        self.assertEqual((seen.writers["w1"].is_held, seen.writers["w1"].holders), (False, ()))
        (token,) = await self.append(await self.lease("after"), [note("new")])
        self.assertGreater(token, seen.floor)

    async def test_confirming_again_changes_nothing(self) -> None:
        await self.fail_over()
        other = await self.make_store("other")
        await self.store.confirm({})
        seen = await self.look()
        self.assertEqual(await other.confirm({"notes": {"w1": seen.floor + 1}}), 2)
        self.assertEqual(await self.look(), seen)

    async def test_a_server_that_did_not_change_needs_no_confirmation(self) -> None:
        await self.append(await self.lease("w1"), [note("a")])
        seen = await self.look()
        self.assertEqual(await self.store.confirm({}), 1)
        self.assertEqual(await self.look(), seen)

    async def test_the_floor_is_above_what_a_master_knows_to_be_announced(self) -> None:
        await self.fail_over()
        announced = 5 * MARGIN
        await self.store.confirm({"notes": {"w1": announced, "only there": announced + 7}})
        self.assertGreaterEqual((await self.look()).floor, announced + 7 + MARGIN)

    async def test_tokens_of_the_old_server_are_void(self) -> None:
        lease = await self.lease("w1")
        reserved = await lease.reserve(NOTES, 1, 0)
        await self.promote(NOTES, EVERY)
        await self.store.confirm({})
        with self.assertRaises(Fenced):
            await lease.write(NOTES, [Fact(reserved[0], "w1", (note("late"),))])
        with self.assertRaises(Fenced):
            await lease.append(NOTES, [Draft([[note("late")]])], 0)

    async def test_a_reader_that_saw_lost_facts_is_refused(self) -> None:
        tokens = await self.fail_over()
        await self.store.confirm({})
        floor = (await self.look()).floor
        for writer in ("w1", "written only there"):
            with self.assertRaises(FactsLost) as caught:
                await self.page(Range(tokens[8], floor), writer)
            kept = tokens[3] if writer == "w1" else 0
            self.assertEqual((caught.exception.kept, caught.exception.floor), (kept, floor))

    async def test_a_reader_that_saw_only_surviving_facts_gets_the_rest(self) -> None:
        tokens = await self.fail_over()
        await self.store.confirm({})
        floor = (await self.look()).floor
        for upto in (floor, floor + 5):
            page = await self.page(Range(tokens[1], upto))
            self.assertEqual([fact.token for fact in page.facts], tokens[2:6])
            self.assertEqual(page.upto, upto)

    async def test_surviving_facts_are_read_page_by_page(self) -> None:
        tokens = await self.fail_over()
        await self.store.confirm({})
        floor = (await self.look()).floor
        found: list[Token] = []
        after = tokens[3]
        while after < floor - 1:
            page = await self.store.page(NOTES, Range(after, floor - 1), "w1", 1)
            found += [fact.token for fact in page.facts]
            after = page.upto
        self.assertEqual(found, tokens[4:6])
        self.assertEqual((await self.page(Range(floor - 1, floor + 9))).facts, ())

    async def test_recorded_positions_of_followers_count_as_surviving(self) -> None:
        lease = await self.lease("w1")
        tokens = await self.append(lease, *([note(str(n))] for n in range(10)))
        await self.store.record_follower("f1", {("notes", "w1"): tokens[4]})
        await self.store.record_follower("f2", {("notes", ""): tokens[2]})
        await self.promote(NOTES, tokens[5])
        await self.store.confirm({})
        floor = (await self.look()).floor
        for writer, kept in (("w1", tokens[4]), ("w2", tokens[2]), (None, tokens[2])):
            with self.assertRaises(FactsLost) as caught:
                await self.page(Range(tokens[8], floor), writer)
            self.assertEqual(caught.exception.kept, kept)

    async def test_survives_two_failovers_in_a_row(self) -> None:
        tokens = await self.fail_over()
        await self.store.confirm({})
        first = (await self.look()).floor
        (again,) = await self.append(await self.lease("after"), [note("between")])
        await self.promote(NOTES, first)
        self.assertEqual(await self.store.confirm({}), 3)
        seen = await self.look()
        self.assertGreater(seen.floor, again + MARGIN - 1)
        for writer, after, kept in (("w1", tokens[8], tokens[3]), ("after", again, first)):
            with self.assertRaises(FactsLost) as caught:
                await self.page(Range(after, seen.floor), writer)
            self.assertEqual(caught.exception.kept, kept)

    async def test_advances_a_stream_that_counts_down(self) -> None:
        rows: Sequence[BackfillRow] = list(rows_of(BACKFILL))  # type: ignore[misc]
        lease = await self.lease("w1", BACKFILL)
        tokens = await self.append(lease, *([rows[0]] for _ in range(5)), stream=BACKFILL)
        await self.promote(BACKFILL, tokens[2])
        await self.store.confirm({})
        floor = (await self.look(BACKFILL)).floor
        lease = await self.lease("after", BACKFILL)
        (token,) = await self.append(lease, [rows[0]], stream=BACKFILL)
        self.assertGreater(token, floor)
