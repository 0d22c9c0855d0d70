"""The contract of every store of facts.

Mix :class:`FactStoreContract` into a trial test case that says how to make one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, DeferredList
from twisted.trial.unittest import TestCase

from synrepl.core.tokens import Range, Token
from synrepl.storage.store import (
    AgedPositions,
    AppendResult,
    BadValue,
    DatabaseAway,
    Draft,
    FactStore,
    Fenced,
    KeyReused,
    Observation,
    Trimmed,
    TrimResult,
    WriterLease,
    WriterTaken,
)
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row
from synrepl.streams.rows import BadRow
from synrepl.streams.synapse.backfill import BACKFILL, BackfillRow
from synrepl.streams.synapse.typing import TypingRow
from tests.storage.samples import EVERYTHING, NOTES, note, rows_of

EVERY = 2**40

# The contract is a test case only as a mixin, so that it is not run by itself.
if TYPE_CHECKING:
    Base = TestCase
else:
    Base = object


class FactStoreContract(Base):
    """The tests. Implementations override the methods that raise NotImplementedError."""

    timeout = 60

    #: The streams that the store can hold.
    streams: Sequence[Stream]

    async def make_store(self, holder: str) -> FactStore:
        """The store of the process ``holder``; all stores of a test share their data."""
        raise NotImplementedError

    async def prepare_all(self) -> None:
        """Create all :attr:`streams`; a few of them exist from the start."""

    async def cut(self, lease: Any) -> None:
        """Cut a lease's session; returns once the lease knows."""
        raise NotImplementedError

    async def set_sequence(self, stream: Stream, token: Token) -> None:
        """Set the sequence of a stream to another token."""
        raise NotImplementedError

    async def pass_time(self, seconds: float) -> None:
        """Make the marks older."""
        raise NotImplementedError

    async def setUp(self) -> None:  # type: ignore[override]
        self.store = await self.make_store("alpha")
        self._leases: list[WriterLease] = []

    async def tearDown(self) -> None:  # type: ignore[override]
        for lease in self._leases:
            with suppress(DatabaseAway):  # closed or cut by the test
                await lease.close()

    async def lease(
        self, writer: str = "w1", *streams: Stream, store: FactStore | None = None
    ) -> WriterLease:
        lease = await (store or self.store).open_writer(writer, streams or (NOTES,))
        self._leases.append(lease)
        return lease

    async def append(
        self, lease: WriterLease, *facts: Sequence[Row], stream: Stream = NOTES, floor: Token = 0
    ) -> list[Token]:
        (written,) = await lease.append(stream, [Draft(facts)], floor)
        self.assertFalse(written.replayed)
        return list(written.tokens)

    async def facts(
        self, stream: Stream = NOTES, writer: str | None = None, after: Token = 0
    ) -> list[Fact]:
        page = await self.store.page(stream, Range(after, EVERY), writer, 10_000)
        self.assertFalse(page.is_limited)
        return list(page.facts)

    async def look(self, stream: Stream = NOTES) -> Observation:
        return (await self.store.observe([stream]))[stream.name]

    # -- rows ---------------------------------------------------------------------------

    async def test_rows_of_every_stream_come_back_as_they_were(self) -> None:
        await self.prepare_all()
        lease = await self.lease("w1", *self.streams)
        for stream in self.streams:
            rows = rows_of(stream)
            alone = [[row] for row in rows]
            few = [rows[n : n + 3] for n in range(0, len(rows), 3)]
            tokens: list[Token] = []
            for fact in alone:
                tokens += await self.append(lease, fact, stream=stream)
            for at in range(0, len(few), 2):
                tokens += await self.append(lease, *few[at : at + 2], stream=stream)
            tokens += await self.append(lease, rows * 5, *alone, stream=stream)
            self.assertEqual(tokens, sorted(set(tokens)))
            expected = [*alone, *few, rows * 5, *alone]
            self.assertEqual(
                await self.facts(stream),
                [Fact(t, "w1", tuple(rows)) for t, rows in zip(tokens, expected, strict=True)],
                stream.name,
            )

    async def test_reserved_rows_of_every_type_come_back_as_they_were(self) -> None:
        lease = await self.lease("w1", EVERYTHING)
        rows = tuple(rows_of(EVERYTHING))
        tokens = await lease.reserve(EVERYTHING, 2, 0)
        facts = [Fact(tokens[0], "w1", rows), Fact(tokens[1], "w1", rows[:1])]
        await lease.write(EVERYTHING, facts)
        self.assertEqual(await self.facts(EVERYTHING), facts)

    async def test_appends_several_drafts_at_once(self) -> None:
        lease = await self.lease()
        one, two, three = await lease.append(
            NOTES,
            [
                Draft([[note("a")], [], [note("b"), note("c")]]),
                Draft([[note("d")]]),
                Draft([[]]),
            ],
            0,
        )
        tokens = [*one.tokens, *two.tokens, *three.tokens]
        self.assertEqual([len(w.tokens) for w in (one, two, three)], [3, 1, 1])
        self.assertEqual(tokens, sorted(set(tokens)))
        self.assertEqual(
            await self.facts(),
            [
                Fact(tokens[0], "w1", (note("a"),)),
                Fact(tokens[2], "w1", (note("b"), note("c"))),
                Fact(tokens[3], "w1", (note("d"),)),
            ],
        )

    async def test_facts_without_rows_take_tokens_and_leave_nothing(self) -> None:
        lease = await self.lease()
        tokens = await self.append(lease, [], [], [])
        self.assertEqual(len(set(tokens)), 3)
        self.assertEqual(await self.facts(), [])
        seen = await self.look()
        self.assertEqual(seen.last, tokens[-1])
        self.assertEqual(seen.writers["w1"].holders, ())

    async def test_a_value_that_does_not_fit_refuses_all_drafts(self) -> None:
        lease = await self.lease()
        for many in (0, 100):
            good = [[note("good")] for _ in range(1 + many)]
            drafts = [Draft(good), Draft([[note("NUL \0")]])]
            with self.assertRaises(BadValue):
                await lease.append(NOTES, drafts, 0)
        self.assertEqual(await self.facts(), [])
        self.assertEqual((await self.look()).writers["w1"].holders, ())
        await self.append(lease, [note("still works")])

    async def test_a_row_of_another_stream_is_refused(self) -> None:
        lease = await self.lease()
        with self.assertRaises(BadRow):
            await lease.append(NOTES, [Draft([[TypingRow("!r", [])]])], 0)

    async def test_a_stream_that_counts_down_has_tokens_that_go_up(self) -> None:
        lease = await self.lease("w1", BACKFILL)
        rows = [BackfillRow(f"$e{n}", "!r", "m", None, None, None) for n in range(60)]
        tokens = await self.append(lease, [rows[0]], rows[1:3], stream=BACKFILL)
        tokens += await self.append(lease, *([row] for row in rows[3:]), stream=BACKFILL)
        self.assertEqual(tokens, sorted(set(tokens)))
        self.assertGreater(tokens[0], 0)
        facts = await self.facts(BACKFILL)
        self.assertEqual([fact.token for fact in facts], tokens)
        self.assertEqual([row for fact in facts for row in fact.rows], rows)
        page = await self.store.page(BACKFILL, Range(tokens[0], tokens[4]), None, 3)
        self.assertEqual([fact.token for fact in page.facts], tokens[1:3])
        span = Range(tokens[0], tokens[4])
        self.assertEqual(await self.store.reached(BACKFILL, span), {"w1": tokens[4]})
        self.assertEqual((await self.look(BACKFILL)).last, tokens[-1])
        await self.set_sequence(BACKFILL, tokens[5])
        again = await self.append(lease, [rows[0]], stream=BACKFILL)
        self.assertGreater(again[0], tokens[-1])

    # -- reading ------------------------------------------------------------------------

    async def test_pages_never_split_a_fact(self) -> None:
        lease = await self.lease()
        sizes = [1, 3, 2, 7, 1, 1, 4]
        facts = [[note(f"{n}.{m}") for m in range(size)] for n, size in enumerate(sizes)]
        tokens = await self.append(lease, *facts)
        limits, ends = (1, 2, 3, 4, 5, 8, 18, 19, 100), (tokens[-1], tokens[-1] + 10)
        for limit, end in product(limits, ends):
            after = 0
            found: list[Fact] = []
            while after < end:
                page = await self.store.page(NOTES, Range(after, end), None, limit)
                rows = sum(len(fact.rows) for fact in page.facts)
                self.assertTrue(rows <= limit or len(page.facts) == 1, (limit, page))
                self.assertGreater(page.upto, after)
                self.assertEqual(page.is_limited, page.upto < end)
                if page.is_limited:
                    self.assertEqual(page.upto, page.facts[-1].token)
                found += page.facts
                after = page.upto
            expected = [Fact(t, "w1", tuple(r)) for t, r in zip(tokens, facts, strict=True)]
            self.assertEqual(found, expected, limit)

    async def test_a_page_contains_only_facts_of_the_range(self) -> None:
        lease = await self.lease()
        tokens = await self.append(lease, *([note(str(n))] for n in range(6)))
        page = await self.store.page(NOTES, Range(tokens[1], tokens[4]), None, 100)
        self.assertEqual([fact.token for fact in page.facts], tokens[2:5])
        self.assertEqual((page.upto, page.is_limited), (tokens[4], False))
        exact = await self.store.page(NOTES, Range(tokens[1], tokens[4]), None, 3)
        self.assertEqual(exact, page)
        for span in (Range(tokens[2], tokens[2]), Range(tokens[4], tokens[1])):
            empty = await self.store.page(NOTES, span, None, 100)
            self.assertEqual(
                (list(empty.facts), empty.upto, empty.is_limited), ([], span.after, False)
            )

    async def test_reads_pages_of_one_writer(self) -> None:
        one, two = await self.lease("w1"), await self.lease("w2")
        mine: list[Token] = []
        for n in range(5):
            mine += await self.append(one, [note(f"one {n}")])
            await self.append(two, [note(f"two {n}")])
        end = (await self.look()).last
        page = await self.store.page(NOTES, Range(0, end), "w1", 3)
        self.assertEqual([f.token for f in page.facts], mine[:3])
        self.assertTrue(page.is_limited)
        page = await self.store.page(NOTES, Range(page.upto, end), "w1", 3)
        self.assertEqual([f.token for f in page.facts], mine[3:])
        self.assertEqual({f.writer for f in page.facts}, {"w1"})
        self.assertEqual((page.upto, page.is_limited), (end, False))
        self.assertEqual(await self.facts(writer="nobody"), [])

    async def test_returns_the_largest_token_of_each_writer(self) -> None:
        one, two = await self.lease("w1"), await self.lease("w2")
        a = await self.append(one, [note("a")])
        b = await self.append(two, [note("b")])
        c = await self.append(one, [note("c")])
        empty = await self.append(two, [])
        reached = self.store.reached
        self.assertEqual(await reached(NOTES, Range(0, empty[0])), {"w1": c[0], "w2": b[0]})
        self.assertEqual(await reached(NOTES, Range(a[0], b[0])), {"w2": b[0]})
        self.assertEqual(await reached(NOTES, Range(c[0], empty[0])), {})
        self.assertEqual(await reached(NOTES, Range(empty[0], 0)), {})

    # -- idempotency --------------------------------------------------------------------

    async def test_a_key_used_again_gets_the_first_answer(self) -> None:
        lease = await self.lease()
        draft = Draft([[note("a")], [note("b")]], key="k")
        (first,) = await lease.append(NOTES, [draft], 0)
        (again,) = await lease.append(NOTES, [draft], 0)
        self.assertEqual(first, AppendResult(first.tokens, "w1"))
        self.assertEqual(again, AppendResult(first.tokens, "w1", replayed=True))
        self.assertEqual(len(await self.facts()), 2)

    async def test_a_key_used_again_at_another_writer_names_the_first_one(self) -> None:
        one, other = await self.lease("w1"), await self.lease("w2")
        draft = Draft([[note("a")]], key="k")
        (first,) = await one.append(NOTES, [draft], 0)
        mine, elsewhere = await other.append(NOTES, [Draft([[note("b")]], key="mine"), draft], 0)
        self.assertEqual(elsewhere, AppendResult(first.tokens, "w1", replayed=True))
        self.assertEqual(mine.writer, "w2")
        (back,) = await one.append(NOTES, [Draft([[note("b")]], key="mine")], 0)
        self.assertEqual(back, AppendResult(mine.tokens, "w2", replayed=True))
        self.assertEqual(len(await self.facts()), 2)

    async def test_a_replay_among_fresh_drafts(self) -> None:
        lease = await self.lease()
        old = Draft([[note("old")]], key="old")
        (first,) = await lease.append(NOTES, [old], 0)
        before, replayed, after = await lease.append(
            NOTES, [Draft([[note("x")]], key="x"), old, Draft([[note("y")]])], 0
        )
        self.assertEqual(replayed, AppendResult(first.tokens, "w1", replayed=True))
        self.assertEqual((before.replayed, after.replayed), (False, False))
        found = {fact.token: fact.rows[0] for fact in await self.facts()}
        self.assertEqual(
            found,
            {
                first.tokens[0]: note("old"),
                before.tokens[0]: note("x"),
                after.tokens[0]: note("y"),
            },
        )

    async def test_refuses_a_key_used_with_other_rows(self) -> None:
        lease = await self.lease()
        await lease.append(NOTES, [Draft([[note("a")]], key="k")], 0)
        with self.assertRaises(KeyReused):
            await lease.append(NOTES, [Draft([[note("fresh")]]), Draft([[note("b")]], key="k")], 0)
        self.assertEqual([f.rows for f in await self.facts()], [(note("a"),)])

    async def test_a_key_belongs_to_its_stream(self) -> None:
        lease = await self.lease("w1", NOTES, BACKFILL)
        await lease.append(NOTES, [Draft([[note("a")]], key="k")], 0)
        row = BackfillRow("$e", "!r", "m", None, None, None)
        (written,) = await lease.append(BACKFILL, [Draft([[row]], key="k")], 0)
        self.assertFalse(written.replayed)

    async def test_concurrent_requests_with_one_key_append_once(self) -> None:
        leases = [await self.lease(f"w{n}") for n in range(4)]
        draft = Draft([[note("once")]], key="k")
        outcomes = await DeferredList(
            [Deferred.fromCoroutine(lease.append(NOTES, [draft], 0)) for lease in leases]
        )
        answers = [answer[0] for ok, answer in outcomes if ok]
        self.assertEqual(len(answers), 4, outcomes)
        self.assertEqual(sorted(a.replayed for a in answers), [False, True, True, True])
        self.assertEqual(len({(a.writer, *a.tokens) for a in answers}), 1)
        self.assertEqual(len(await self.facts()), 1)

    # -- writers ------------------------------------------------------------------------

    async def test_only_one_process_can_have_a_name(self) -> None:
        await self.lease("w1")
        other = await self.make_store("beta")
        with self.assertRaises(WriterTaken) as caught:
            await other.open_writer("w1", [NOTES])
        for word in ("'w1'", "'notes'", "alpha"):
            self.assertIn(word, str(caught.exception))

    async def test_a_name_refused_on_one_stream_is_taken_on_none(self) -> None:
        await self.lease("w1", NOTES)
        other = await self.make_store("beta")
        with self.assertRaises(WriterTaken):
            await other.open_writer("w1", [EVERYTHING, NOTES])
        state = (await self.look(EVERYTHING)).writers.get("w1")
        self.assertTrue(state is None or not (state.is_held or state.is_alive), state)
        await self.lease("w1", EVERYTHING)

    async def test_a_released_name_can_be_taken_again(self) -> None:
        first = await self.lease("w1")
        before = (await self.look()).writers["w1"]
        self.assertEqual((before.is_held, before.is_alive), (True, True))
        await first.close()
        between = (await self.look()).writers["w1"]
        self.assertEqual((between.is_held, between.is_alive, between.holders), (False, False, ()))
        other = await self.make_store("beta")
        second = await self.lease("w1", store=other)
        after = (await self.look()).writers["w1"]
        self.assertEqual((after.is_held, after.is_alive), (True, True))
        self.assertTrue(before.epoch < between.epoch < after.epoch)
        await self.append(second, [note("mine now")])

    async def test_a_replaced_writer_is_fenced(self) -> None:
        first = await self.lease("w1")
        tokens = await first.reserve(NOTES, 2, 0)
        await self.cut(first)
        second = await self.lease("w1")
        with self.assertRaises(Fenced) as caught:
            await first.append(NOTES, [Draft([[note("late")]])], 0)
        self.assertIn("'w1' of stream 'notes'", str(caught.exception))
        with self.assertRaises(Fenced):
            await first.write(NOTES, [Fact(tokens[0], "w1", (note("late"),))])
        self.assertEqual(await self.facts(), [])
        await self.append(second, [note("in time")])

    async def test_reports_the_loss_of_the_name(self) -> None:
        lease = await self.lease("w1")
        reasons: list[str] = []
        lease.on_lost(reasons.append)
        await self.cut(lease)
        self.assertEqual(len(reasons), 1)
        lease.on_lost(reasons.append)
        self.assertEqual(len(reasons), 2)
        for attempt in (lease.reserve(NOTES, 1, 0), lease.close()):
            with self.assertRaises(DatabaseAway):
                await attempt

    async def test_closing_is_not_reported_as_a_loss(self) -> None:
        lease = await self.lease("w1")
        reasons: list[str] = []
        lease.on_lost(reasons.append)
        await lease.close()
        await self.look()
        self.assertEqual(reasons, [])

    async def test_a_dead_writer_is_fenced_once(self) -> None:
        lease = await self.lease("w1")
        self.assertFalse(await self.store.fence(NOTES, "w1"))
        tokens = await lease.reserve(NOTES, 2, 0)
        await self.cut(lease)
        dead = (await self.look()).writers["w1"]
        self.assertEqual((dead.is_held, dead.is_alive), (True, False))
        # Until it is fenced, it may still write.
        await lease.write(NOTES, [Fact(tokens[0], "w1", (note("in time"),))])
        self.assertTrue(await self.store.fence(NOTES, "w1"))
        self.assertFalse(await self.store.fence(NOTES, "w1"))
        with self.assertRaises(Fenced):
            await lease.write(NOTES, [Fact(tokens[1], "w1", (note("late"),))])
        fenced = (await self.look()).writers["w1"]
        self.assertEqual((fenced.is_held, fenced.is_alive, fenced.holders), (False, False, ()))
        self.assertEqual([f.token for f in await self.facts()], [tokens[0]])

    async def test_fencing_an_unknown_writer_changes_nothing(self) -> None:
        self.assertFalse(await self.store.fence(NOTES, "nobody"))
        lease = await self.lease("w1")
        await lease.close()
        self.assertFalse(await self.store.fence(NOTES, "w1"))

    # -- reservations and observations --------------------------------------------------

    async def test_writes_facts_at_reserved_tokens(self) -> None:
        lease = await self.lease("w1")
        reserved = list(await lease.reserve(NOTES, 3, 0))
        self.assertEqual(reserved, sorted(set(reserved)))
        meanwhile = await self.append(lease, [note("meanwhile")])
        self.assertGreater(meanwhile[0], reserved[-1])
        await lease.write(NOTES, [Fact(reserved[1], "w1", (note("a"), note("b")))])
        await lease.write(NOTES, [Fact(reserved[0], "w1", (note("c"),))])
        self.assertEqual(len((await self.look()).writers["w1"].holders), 1)
        await lease.release(NOTES, reserved)
        seen = await self.look()
        self.assertEqual((seen.last, seen.writers["w1"].holders), (meanwhile[0], ()))
        self.assertEqual(
            [(fact.token, len(fact.rows)) for fact in await self.facts()],
            [(reserved[0], 1), (reserved[1], 2), (meanwhile[0], 1)],
        )

    async def test_a_reservation_is_held_until_its_last_token_is_released(self) -> None:
        lease = await self.lease("w1")
        tokens = await lease.reserve(NOTES, 3, 0)
        for at in range(3):
            self.assertEqual(len((await self.look()).writers["w1"].holders), 1)
            await lease.release(NOTES, tokens[at : at + 1])
        self.assertEqual((await self.look()).writers["w1"].holders, ())

    async def test_holders_can_be_distinguished_and_followed(self) -> None:
        lease, other = await self.lease("w1"), await self.lease("w2")
        first = await lease.reserve(NOTES, 1, 0)
        (one,) = (await self.look()).writers["w1"].holders
        second = await lease.reserve(NOTES, 2, 0)
        await other.reserve(NOTES, 1, 0)
        seen = await self.look()
        self.assertEqual(len(seen.writers["w2"].holders), 1)
        identities = {holder.identity for holder in seen.writers["w1"].holders}
        self.assertEqual(len(identities), 2)
        self.assertIn(one.identity, identities)
        await lease.release(NOTES, first)
        (two,) = (await self.look()).writers["w1"].holders
        self.assertEqual({one.identity, two.identity}, identities)
        self.assertNotEqual(two.identity, one.identity)
        self.assertTrue(two.description)
        await lease.release(NOTES, second)
        await lease.reserve(NOTES, 1, 0)
        (three,) = (await self.look()).writers["w1"].holders
        self.assertNotIn(three.identity, identities)

    async def test_reserving_no_tokens_takes_none(self) -> None:
        lease = await self.lease("w1")
        self.assertEqual(list(await lease.reserve(NOTES, 0, 0)), [])
        self.assertEqual((await self.look()).writers["w1"].holders, ())

    async def test_observes_several_streams(self) -> None:
        lease = await self.lease("w1", NOTES, BACKFILL)
        await self.append(lease, [note("a")], [note("b")])
        seen = await self.store.observe([BACKFILL, NOTES])
        self.assertEqual(set(seen), {"notes", "backfill"})
        self.assertEqual((seen["notes"].last, seen["backfill"].last), (2, 0))
        self.assertEqual(dict(await self.store.observe([])), {})

    # -- sequences ----------------------------------------------------------------------

    async def test_a_sequence_behind_the_floor_is_moved_forward(self) -> None:
        lease = await self.lease("w1")
        (token,) = await self.append(lease, [note("a")], floor=50)
        self.assertEqual(token, 51)
        self.assertEqual((await lease.reserve(NOTES, 1, 70))[0], 71)
        many = await self.append(lease, *([note("b")] for _ in range(100)), floor=300)
        self.assertEqual(many, list(range(301, 401)))
        (token,) = await self.append(lease, [], floor=500)
        self.assertEqual(token, 501)

    async def test_a_sequence_far_behind_the_floor_is_moved_forward(self) -> None:
        lease = await self.lease("w1")
        (token,) = await self.append(lease, [note("a")], floor=10**12)
        self.assertGreater(token, 10**12)
        self.assertEqual(await self.append(lease, [note("b")]), [token + 1])

    async def test_a_sequence_behind_the_table_is_moved_forward(self) -> None:
        lease = await self.lease("w1")
        tokens = await self.append(lease, *([note(str(n))] for n in range(40)))
        cases: list[list[list[Row]]] = [
            [[note("a")]],
            [[note("b")], [note("c")]],
            [[note("d")]] * 50,
            [[]],
        ]
        for facts in cases:
            await self.set_sequence(NOTES, tokens[7])
            again = await self.append(lease, *facts, floor=0)
            self.assertGreater(again[0], tokens[-1], len(facts))
            if any(facts):
                tokens += again
        self.assertEqual([fact.token for fact in await self.facts()], tokens)

    async def test_a_sequence_behind_is_moved_forward_when_a_writer_opens(self) -> None:
        lease = await self.lease("w1")
        tokens = await self.append(lease, *([note(str(n))] for n in range(40)))
        await lease.close()
        await self.set_sequence(NOTES, 8)
        other = await self.lease("w2")
        again = await self.append(other, [note("again")], floor=0)
        self.assertGreater(again[0], tokens[-1])

    async def test_no_token_at_or_below_a_recorded_position(self) -> None:
        lease = await self.lease("w1")
        await self.store.record_positions(NOTES, 90, {})
        (token,) = await self.append(lease, [note("a")])
        self.assertGreater(token, 90)
        await lease.close()
        await self.store.record_positions(NOTES, 90, {"w1": 200})
        lease = await self.lease("w1")
        (token,) = await self.append(lease, [note("b")])
        self.assertGreater(token, 200)

    # -- positions on record ------------------------------------------------------------

    async def test_recorded_positions_never_go_back(self) -> None:
        await self.lease("w1")
        await self.lease("w2")
        await self.store.record_positions(NOTES, 5, {"w1": 7, "w2": 6})
        await self.store.record_positions(NOTES, 3, {"w1": 9, "w2": 2, "stranger": 4})
        seen = await self.look()
        self.assertEqual(seen.recorded, 5)
        self.assertEqual((seen.writers["w1"].position, seen.writers["w2"].position), (9, 6))
        self.assertNotIn("stranger", seen.writers)

    async def test_knows_the_largest_token_given_out(self) -> None:
        self.assertEqual(await self.store.given_out(NOTES), 0)
        lease = await self.lease()
        tokens = await self.append(lease, [note("a")], [note("b")])
        self.assertEqual(await self.store.given_out(NOTES), tokens[-1])
        (reserved,) = await lease.reserve(NOTES, 1, 0)
        self.assertEqual(await self.store.given_out(NOTES), reserved)
        # The sequence alone is not enough: it may be behind, for instance after a failover.
        await self.set_sequence(NOTES, 1)
        self.assertEqual(await self.store.given_out(NOTES), tokens[-1])
        await self.store.record_positions(NOTES, 70, {})
        self.assertEqual(await self.store.given_out(NOTES), 70)
        await self.store.record_positions(NOTES, 70, {"w1": 90})
        self.assertEqual(await self.store.given_out(NOTES), 90)
        await self.set_sequence(NOTES, 10**9)
        self.assertEqual(await self.store.given_out(NOTES), 10**9)
        await self.set_sequence(BACKFILL, 30)
        self.assertEqual(await self.store.given_out(BACKFILL), 30)

    async def test_follower_positions_never_go_back(self) -> None:
        self.assertEqual(await self.store.follower_positions("f1"), {})
        await self.store.record_follower("f1", {("notes", "w1"): 5, ("notes", "w2"): 7})
        await self.store.record_follower("f1", {("notes", "w1"): 4, ("notes", "w2"): 8})
        await self.store.record_follower("f2", {("notes", "w1"): 1})
        self.assertEqual(
            await self.store.follower_positions("f1"), {("notes", "w1"): 5, ("notes", "w2"): 8}
        )
        self.assertEqual(await self.store.follower_positions("f2"), {("notes", "w1"): 1})

    async def test_named_followers_are_known_by_lease_and_position(self) -> None:
        await self.store.record_follower("f2", {("notes", "w1"): 5})
        await self.store.renew_lease("f1", ["notes"], 60)
        await self.store.renew_lease("f3", None, -60)
        one, two, three = await self.store.named_followers()
        self.assertEqual([each.name for each in (one, two, three)], ["f1", "f2", "f3"])
        self.assertEqual([one.streams, two.streams, three.streams], [{"notes"}, None, None])
        self.assertEqual((one.positions, two.positions), ({}, {("notes", "w1"): 5}))
        assert one.lease_s is not None
        assert three.lease_s is not None
        self.assertGreater(one.lease_s, 0)
        self.assertLess(three.lease_s, 0)
        self.assertEqual((two.lease_s, two.seen_s), (None, None))
        assert one.seen_s is not None
        self.assertGreaterEqual(one.seen_s, 0)

    # -- trimming -----------------------------------------------------------------------

    async def written(self, lease: WriterLease, count: int, stream: Stream = NOTES) -> list[Token]:
        """Append settled facts of one row each, and record their position."""
        row = note("x") if stream is NOTES else rows_of(stream)[0]
        tokens = await self.append(lease, *([row] for _ in range(count)), stream=stream)
        await self.store.record_positions(stream, tokens[-1], {})
        return tokens

    async def trim(
        self, cap: Token = EVERY, forced: Token = 0, limit: int = 1000, stream: Stream = NOTES
    ) -> TrimResult:
        """Trim a batch, and check its result."""
        before = await self.look(stream)
        trim = await self.store.trim(stream, cap, forced, limit)
        seen = await self.look(stream)
        self.assertEqual(seen.trimmed, trim.upto)
        self.assertTrue(before.trimmed <= trim.upto <= min(cap, seen.recorded) or not trim.rows)
        with self.assertRaises(Trimmed) if trim.upto else suppress(Trimmed):
            await self.store.page(stream, Range(trim.upto - 1, EVERY), None, 1)
        return trim

    async def left(self, stream: Stream = NOTES) -> list[Token]:
        """The tokens of the remaining facts."""
        trimmed = (await self.look(stream)).trimmed
        return [fact.token for fact in await self.facts(stream, after=trimmed)]

    async def acknowledge(self, follower: str, token: Token, writer: str = "w1") -> None:
        await self.store.record_follower(follower, {("notes", writer): token})

    async def test_trims_what_all_followers_have_acknowledged(self) -> None:
        tokens = await self.written(await self.lease(), 10)
        for follower in ("f1", "f2"):
            await self.store.renew_lease(follower, None, 60)
            await self.acknowledge(follower, tokens[6])
        self.assertEqual(await self.trim(), TrimResult(tokens[6], 7, "f1"))
        self.assertEqual(await self.left(), tokens[7:])
        await self.acknowledge("f1", tokens[9])
        await self.acknowledge("f2", tokens[7])
        self.assertEqual(await self.trim(), TrimResult(tokens[7], 1, "f2"))
        await self.acknowledge("f2", tokens[9])
        self.assertEqual(await self.trim(), TrimResult(tokens[9], 2, None))
        self.assertEqual(await self.trim(), TrimResult(tokens[9], 0, None))
        self.assertEqual(await self.left(), [])

    async def test_trims_everything_settled_without_followers(self) -> None:
        lease = await self.lease()
        tokens = await self.written(lease, 3)
        await self.append(lease, [note("not on record")])
        self.assertEqual(await self.trim(), TrimResult(tokens[-1], 3, None))
        self.assertEqual(len(await self.left()), 1)

    async def test_a_follower_with_a_lease_and_no_record_holds_everything(self) -> None:
        await self.written(await self.lease(), 3)
        await self.store.renew_lease("f1", ["notes"], 60)
        self.assertEqual(await self.trim(), TrimResult(0, 0, "f1"))

    async def test_a_follower_holds_each_writer_by_itself(self) -> None:
        one, two = await self.lease("w1"), await self.lease("w2")
        first, second = await self.written(one, 2), await self.written(two, 2)
        third = await self.written(one, 2)
        await self.store.renew_lease("f1", None, 60)
        await self.acknowledge("f1", third[0], "w1")
        self.assertEqual(await self.trim(), TrimResult(first[-1], 2, "f1"))
        await self.acknowledge("f1", second[0], "w2")
        self.assertEqual(await self.trim(), TrimResult(second[0], 1, "f1"))
        await self.acknowledge("f1", second[1], "w2")
        self.assertEqual(await self.trim(), TrimResult(third[0], 2, "f1"))

    async def test_an_expired_lease_retains_nothing(self) -> None:
        tokens = await self.written(await self.lease(), 3)
        await self.store.renew_lease("f1", None, 0)
        await self.store.renew_lease("f2", None, 60)
        await self.acknowledge("f2", tokens[1])
        self.assertEqual(await self.trim(), TrimResult(tokens[1], 2, "f2"))
        await self.store.renew_lease("f2", None, 0)
        self.assertEqual(await self.trim(), TrimResult(tokens[2], 1, None))

    async def test_a_lease_retains_only_its_streams(self) -> None:
        await self.written(await self.lease(), 3)
        await self.store.renew_lease("f1", ["everything"], 60)
        await self.store.renew_lease("f2", [], 60)
        self.assertEqual((await self.trim()).rows, 3)
        await self.written(await self.lease("w2"), 3)
        await self.store.renew_lease("f1", ["everything", "notes"], 60)
        self.assertEqual((await self.trim()).held_by, "f1")

    async def test_the_linear_view_acknowledges_all_writers(self) -> None:
        one, two = await self.lease("w1"), await self.lease("w2")
        await self.written(one, 2)
        last = await self.written(two, 2)
        await self.store.renew_lease("f1", None, 60)
        await self.acknowledge("f1", 1, "w1")
        await self.acknowledge("f1", last[0], "")
        self.assertEqual(await self.trim(), TrimResult(last[0], 3, "f1"))

    async def test_a_batch_trims_about_the_limit_of_rows(self) -> None:
        lease = await self.lease()
        sizes = [1, 3, 2, 7, 1]
        tokens = await self.append(lease, *([note("x")] * size for size in sizes))
        await self.store.record_positions(NOTES, tokens[-1], {})
        self.assertEqual(await self.trim(limit=3), TrimResult(tokens[1], 4, None))
        self.assertEqual(await self.trim(limit=2), TrimResult(tokens[2], 2, None))
        self.assertEqual(await self.trim(limit=1), TrimResult(tokens[3], 7, None))
        self.assertEqual(await self.trim(limit=5), TrimResult(tokens[4], 1, None))

    async def test_a_window_is_of_rows_however_far_apart_they_are(self) -> None:
        lease = await self.lease()
        tokens = await self.append(lease, [note("a")])
        tokens += await self.append(lease, [note("b")], floor=10**12)
        await self.store.record_positions(NOTES, tokens[-1], {})
        self.assertEqual(await self.trim(limit=2), TrimResult(tokens[1], 2, None))

    async def test_trims_forced_facts_without_acknowledgement(self) -> None:
        tokens = await self.written(await self.lease(), 5)
        await self.store.renew_lease("f1", None, 60)
        self.assertEqual(await self.trim(forced=tokens[2]), TrimResult(tokens[2], 3, "f1"))
        self.assertEqual(await self.trim(forced=tokens[1]), TrimResult(tokens[2], 0, "f1"))
        self.assertEqual(
            await self.trim(cap=tokens[3], forced=EVERY), TrimResult(tokens[3], 1, None)
        )

    async def test_trims_nothing_above_the_cap(self) -> None:
        tokens = await self.written(await self.lease(), 5)
        self.assertEqual(await self.trim(cap=tokens[1]), TrimResult(tokens[1], 2, None))
        self.assertEqual(await self.trim(cap=tokens[0]), TrimResult(tokens[1], 0, None))
        self.assertEqual(await self.trim(cap=0), TrimResult(tokens[1], 0, None))
        self.assertEqual(await self.left(), tokens[2:])

    async def test_a_reader_of_one_writer_is_refused_only_for_its_trimmed_facts(self) -> None:
        idle, busy = await self.lease("idle"), await self.lease("busy")
        (old,) = await self.written(idle, 1)
        many = await self.written(busy, 5)
        (late,) = await self.written(idle, 1)
        await self.trim(cap=many[-1])
        page = await self.store.page(NOTES, Range(old, late), "idle", 10)
        self.assertEqual([fact.token for fact in page.facts], [late])
        self.assertEqual((await self.store.page(NOTES, Range(0, late), "none", 1)).facts, ())
        page = await self.store.page(NOTES, Range(many[-1], late), "busy", 10)
        self.assertEqual((page.facts, page.upto), ((), late))
        for writer, after, gone in (
            ("idle", 0, old),
            ("busy", old, many[-1]),
            (None, old, many[-1]),
        ):
            with self.assertRaises(Trimmed) as caught:
                await self.store.page(NOTES, Range(after, late), writer, 10)
            self.assertEqual(caught.exception.facts["trimmed"], gone)

    async def test_tokens_continue_above_trimmed_ones(self) -> None:
        lease = await self.lease()
        tokens = await self.written(lease, 3)
        await self.trim()
        await lease.close()
        await self.set_sequence(NOTES, 1)
        self.assertGreater((await self.append(await self.lease(), [note("a")]))[0], tokens[-1])

    async def test_trims_a_stream_that_counts_down(self) -> None:
        tokens = await self.written(await self.lease("w1", BACKFILL), 5, BACKFILL)
        await self.store.renew_lease("f1", None, 60)
        await self.store.record_follower("f1", {("backfill", "w1"): tokens[2]})
        self.assertEqual(await self.trim(stream=BACKFILL, limit=2), TrimResult(tokens[1], 2, None))
        self.assertEqual(await self.trim(stream=BACKFILL), TrimResult(tokens[2], 1, "f1"))
        self.assertEqual(await self.left(BACKFILL), tokens[3:])

    async def test_concurrent_trims_delete_each_fact_once(self) -> None:
        lease = await self.lease()
        tokens = await self.written(lease, 30)
        other = await self.make_store("beta")
        trims = await DeferredList(
            [
                Deferred.fromCoroutine(store.trim(NOTES, tokens[24], 0, 4))
                for store in (self.store, other) * 5
            ]
        )
        answers = [answer for ok, answer in trims if ok]
        self.assertEqual(len(answers), 10, trims)
        self.assertEqual(sum(answer.rows for answer in answers), 25)
        self.assertEqual((await self.trim(cap=tokens[24])).upto, tokens[24])
        self.assertEqual(await self.left(), tokens[25:])

    async def test_everything_recorded_is_old_enough_without_a_minimum_age(self) -> None:
        tokens = await self.written(await self.lease(), 3)
        aged = await self.store.mark(NOTES, 0, 100)
        self.assertEqual((aged.past_keep, aged.past_max), (tokens[-1], 0))

    async def test_marks_show_the_age_of_facts(self) -> None:
        lease = await self.lease()
        first = (await self.written(lease, 3))[-1]
        self.assertEqual(
            await self.store.mark(NOTES, 10, 100), AgedPositions(0, 0)
        )  # the mark is recorded only now
        await self.pass_time(11)
        second = (await self.written(lease, 3))[-1]
        self.assertEqual(await self.store.mark(NOTES, 10, 100), AgedPositions(first, 0))
        await self.pass_time(11)
        self.assertEqual(await self.store.mark(NOTES, 10, 100), AgedPositions(second, 0))
        await self.pass_time(85)
        self.assertEqual(await self.store.mark(NOTES, 10, 100), AgedPositions(second, first))
        await self.pass_time(11)
        self.assertEqual(await self.store.mark(NOTES, 10, 100), AgedPositions(second, second))

    async def test_a_stream_in_which_nothing_was_written_has_no_age(self) -> None:
        await self.lease()
        for _ in range(3):
            self.assertEqual(await self.store.mark(NOTES, 10, 100), AgedPositions(0, 0))
            await self.pass_time(1000)
