"""Writing rows with their IDs and writers, and announcing them to followers."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from synrepl.streams.definition import Fact
from synrepl.streams.synapse.account_data import ACCOUNT_DATA
from synrepl.streams.synapse.backfill import BACKFILL
from synrepl.streams.synapse.tag_account_data import TAG_ACCOUNT_DATA
from system_tests.pipeline.sink_case import SinkCase, error_in
from tests.storage.announcing_process import AnnouncingProcess
from tests.storage.samples import NOTES, note

DDL = "stream_id bigint, row_no int, writer string, text string, n bigint"
ROWS = [
    (5, 0, "w1", "a", 1),
    (5, 1, "w1", "b", 2),
    (6, 0, "w2", "c", 3),
    (9, 0, "w1", "d", 4),
]
FACTS = [
    Fact(5, "w1", (note("a", 1), note("b", 2))),
    Fact(6, "w2", (note("c", 3),)),
    Fact(9, "w1", (note("d", 4),)),
]


class FollowersOfASink(SinkCase):
    """A process announces the stream while rows are written."""

    async def announcing(self, poll_s: float = 0.05) -> AnnouncingProcess:
        announcing = AnnouncingProcess(self, self.process("master"), "master", poll_s)
        await announcing.start()
        self.addCleanup(lambda: Deferred.fromCoroutine(announcing.stop()))
        return announcing

    async def test_new_facts_are_announced(self) -> None:
        announcing = await self.announcing()
        listener = announcing.listener
        self.write(self.frame("text string", *((str(n),) for n in range(100)), parts=3))
        await announcing.writer.append(NOTES, [[note("mine")]])
        self.write(self.frame("text string", ("last",)), writer="w1")
        await self.until(lambda: listener.linear >= 102)
        self.assertEqual(listener.linear_facts, await self.facts())
        self.assertEqual(len([f for f in listener.facts if f.writer == "spark"]), 100)
        self.assertEqual([f.rows[0].text for f in listener.facts if f.writer == "w1"], ["last"])  # type: ignore[attr-defined]

    async def test_preserved_rows_are_announced(self) -> None:
        announcing = await self.announcing()
        listener = announcing.listener
        (mine,) = (await announcing.writer.append(NOTES, [[note("before")]])).tokens
        self.write(self.frame(DDL, *ROWS, parts=2), positions="preserve")
        await self.until(lambda: listener.linear >= 9)
        before = Fact(mine, "master", (note("before"),))
        self.assertEqual(listener.linear_facts, [before, *FACTS])
        self.assertEqual([f for f in listener.facts if f.writer == "w1"], [FACTS[0], FACTS[2]])
        self.assertGreaterEqual(listener.positions["w2"], 6)
        (after,) = (await announcing.writer.append(NOTES, [[note("after")]])).tokens
        self.assertGreater(after, 9)
        await self.until(lambda: listener.linear >= after)

    async def test_a_master_that_starts_later_announces_them(self) -> None:
        self.write(self.frame(DDL, *ROWS), positions="preserve")
        announcing = await self.announcing()
        state = announcing.state
        await self.until(lambda: state.linear >= 9)
        self.assertEqual((state.positions["w1"], await self.facts()), (9, FACTS))

    async def test_a_master_that_starts_before_the_sequence_is_moved_announces_them(self) -> None:
        self.sql("SELECT synrepl.append('notes', '[{\"text\": \"before\"}]')")
        self.write(self.frame(DDL, *ROWS), positions="preserve")
        self.sql("SELECT setval('synrepl._notes_seq', 1)")
        announcing = await self.announcing()
        state = announcing.state
        at = {name: state.positions[name] for name in ("sql", "w1", "w2")}
        self.assertEqual(at, {"sql": 1, "w1": 9, "w2": 6})
        # The master finds the sequence behind, and uses up one ID.
        self.assertEqual(
            (state.linear, self.sql("SELECT last_value FROM synrepl._notes_seq")), (10, 10)
        )


class PreservedPositions(SinkCase):
    """Rows are written unchanged, or not at all."""

    def given_out(self, stream: str = "notes") -> int:
        """The last ID that a stream's sequence gave out."""
        return int(
            self.sql(
                f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM synrepl._{stream}_seq"
            )
        )

    def replay(self, *rows: Any, **options: Any) -> None:
        self.write(self.frame(DDL, *rows), positions="preserve", **options)

    def not_replayed(self, *rows: Any, words: tuple[str, ...]) -> None:
        before = self.rows("SELECT * FROM synrepl.notes ORDER BY stream_id, row_no")
        self.refused(self.frame(DDL, *rows), *words, positions="preserve")
        self.assertEqual(
            self.rows("SELECT * FROM synrepl.notes ORDER BY stream_id, row_no"), before
        )
        self.assertEqual(self.left_over(), 0)

    async def test_repeating_a_replay_changes_nothing(self) -> None:
        self.write(self.frame(DDL, *reversed(ROWS), parts=3), positions="preserve")
        self.replay(*ROWS)
        self.replay(*ROWS[:3])
        self.assertEqual(await self.facts(), FACTS)
        self.assertEqual(self.left_over(), 0)
        self.replay((10, 0, "w3", "e", None))
        self.write(self.frame("text string", ("new",)))
        self.assertEqual([fact.token for fact in await self.facts()], [5, 6, 9, 10, 11])

    async def test_different_existing_rows_are_refused(self) -> None:
        self.replay(*ROWS)
        taken = ("up to 9", "begin at", "nothing was written")
        self.not_replayed((5, 0, "w1", "a", 1), words=taken)
        self.not_replayed(*ROWS[:2], (6, 0, "w2", "other", 3), words=taken)
        self.not_replayed(*ROWS[:2], (6, 0, "w1", "c", 3), words=taken)
        self.not_replayed((7, 0, "w1", "x", 1), words=taken)
        self.not_replayed(*ROWS, (10, 0, "w1", "x", 1), words=taken)

    async def test_allocated_tokens_are_refused(self) -> None:
        self.sql("SELECT synrepl.append('notes', '[]')")
        self.not_replayed((1, 0, "w1", "a", 1), words=("up to 1", "begin at 1"))
        await self.process("master").store.record_positions(NOTES, 20, {})
        self.not_replayed((19, 0, "w1", "a", 1), words=("up to 20",))
        self.replay((21, 0, "w1", "a", 1))

    async def test_rows_that_make_no_facts_are_refused(self) -> None:
        for rows, word in (
            ([(0, 0, "w", "a", 1)], "above 0"),
            ([(-1, 0, "w", "a", 1)], "above 0"),
            ([(1, 1, "w", "a", 1)], "fact 1"),
            ([(1, 0, "w", "a", 1), (1, 0, "w", "b", 1)], "fact 1"),
            ([(1, 0, "w", "a", 1), (1, 1, "v", "b", 1)], "several writers"),
            ([(1, 0, "a b", "a", 1)], "no writer's name"),
            ([(1, None, "w", "a", 1)], "may not be NULL"),
            ([(1, 0, "w", None, 1), (2, 0, "w", "b", 1)], "1 of 2 rows"),
        ):
            with self.subTest(rows):
                self.not_replayed(*rows, words=(word,))

    async def test_live_writers_are_refused(self) -> None:
        lease = await self.process("other").store.open_writer("w1", [NOTES])
        self.not_replayed(*ROWS, words=("'w1'", "held by"))
        await lease.close()
        open_one = self.connect()
        open_one.autocommit = False
        self.sql("SELECT synrepl.append('notes', '[]')", on=open_one)
        self.not_replayed(*ROWS, words=("'sql'", "has a transaction open"))
        open_one.rollback()
        self.replay(*ROWS)
        self.assertEqual(await self.facts(), FACTS)

    async def test_a_descending_stream_keeps_its_ids(self) -> None:
        ddl = "stream_id bigint, row_no int, writer string, event_id string, room_id string, type string"
        rows = [(-3, 0, "w", "$a", "!r", "m"), (-4, 0, "w", "$b", "!r", "m")]
        self.write(self.frame(ddl, *rows), "backfill", positions="preserve")
        self.write(self.frame(ddl, *rows), "backfill", positions="preserve")
        self.write(
            self.frame("event_id string, room_id string, type string", ("$c", "!r", "m")),
            "backfill",
        )
        facts = await self.facts(BACKFILL)
        self.assertEqual([fact.token for fact in facts], [3, 4, 5])

    async def test_a_rollback_at_the_very_end_leaves_nothing(self) -> None:
        self.sql(
            "CREATE FUNCTION no_commit() RETURNS trigger LANGUAGE plpgsql"
            " AS $$ BEGIN RAISE EXCEPTION 'not today'; END $$"
        )
        self.sql(
            "CREATE CONSTRAINT TRIGGER no_commit AFTER INSERT ON synrepl.notes"
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION no_commit()"
        )
        self.not_replayed(*ROWS, words=("not today",))
        # An observation must not find the IDs settled now.
        observation = (await self.process("other").store.observe([NOTES]))["notes"]
        self.assertEqual((observation.last, observation.recorded), (0, 0))
        self.sql("DROP TRIGGER no_commit ON synrepl.notes")
        self.replay(*ROWS)
        self.assertEqual((await self.facts(), self.given_out()), (FACTS, 9))

    async def test_repeating_advances_a_sequence_that_was_not_advanced(self) -> None:
        self.replay(*ROWS)
        self.sql("SELECT setval('synrepl._notes_seq', 1, false)")
        self.replay(*ROWS)
        self.assertEqual((await self.facts(), self.given_out()), (FACTS, 9))
        self.sql("SELECT setval('synrepl._notes_seq', 1, false)")
        self.assertEqual(self.sql("SELECT synrepl.append('notes', '[]')"), 10)

    async def test_large_gaps_in_tokens_are_accepted(self) -> None:
        self.replay((10**6, 0, "w", "a", 1))
        self.assertEqual(self.given_out(), 10**6)
        self.sql("SELECT synrepl.append('notes', '[]')")
        self.replay((10**6 + 2, 0, "w", "b", 1))
        self.assertEqual(self.given_out(), 10**6 + 2)

    async def test_reserved_tokens_are_refused(self) -> None:
        lease = await self.process("other").store.open_writer("mine", [NOTES])
        tokens = await lease.reserve(NOTES, 2, 0)
        self.not_replayed(*ROWS, words=("'mine'", "IDs reserved"))
        await lease.release(NOTES, tokens)
        self.replay(*ROWS)
        self.assertEqual(await self.facts(), FACTS)
        await lease.close()

    async def test_a_dead_writer_is_fenced_off(self) -> None:
        process = self.process("other")
        lease = await process.store.open_writer("w1", [NOTES])
        epoch = lease.epoch(NOTES)
        await process.session_of(lease).close()
        self.replay(*ROWS)
        state = (await self.process("reader").store.observe([NOTES]))["notes"].writers["w1"]
        self.assertEqual((state.epoch, state.is_held, state.position), (epoch + 1, False, 9))


class StreamsWithASharedSequence(SinkCase):
    """Two streams with one sequence."""

    STREAMS = (ACCOUNT_DATA, TAG_ACCOUNT_DATA)
    DATA = "stream_id bigint, row_no int, writer string, user_id string, room_id string, data_type string"
    TAGS = (
        "stream_id bigint, row_no int, writer string, user_id string, room_id string, data string"
    )

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        await self.process("tables").store.prepare(self.STREAMS)

    def replay(self, ddl: str, stream: str, *ids: int) -> None:
        rows = [(each, 0, "w", "@u", "!r", "{}") for each in ids]
        self.write(self.frame(ddl, *rows), stream, positions="preserve")

    def ids(self, stream: str) -> list[int]:
        return [row[0] for row in self.rows(f"SELECT stream_id FROM synrepl.{stream} ORDER BY 1")]

    async def test_streams_can_be_replayed_in_any_order(self) -> None:
        self.replay(self.DATA, "account_data", 2, 5, 9)
        self.replay(self.TAGS, "tag_account_data", 1, 4)
        self.assertEqual(self.sql("SELECT last_value FROM synrepl._account_data_seq"), 9)
        self.replay(self.TAGS, "tag_account_data", 6, 12)
        self.replay(self.DATA, "account_data", 10)
        self.assertEqual(self.sql("SELECT last_value FROM synrepl._account_data_seq"), 12)
        self.assertEqual(self.ids("account_data"), [2, 5, 9, 10])
        self.assertEqual(self.ids("tag_account_data"), [1, 4, 6, 12])
        self.sql("SELECT synrepl.append('account_data', '[]')")
        with self.assertRaises(Exception) as caught:
            self.replay(self.DATA, "account_data", 11)
        self.assertIn("up to 13", error_in(caught.exception))

    async def test_tokens_that_may_have_been_announced_are_refused(self) -> None:
        self.replay(self.DATA, "account_data", 2, 9)
        lease = await self.process("other").store.open_writer("mine", self.STREAMS)
        with self.assertRaises(Exception) as caught:
            self.replay(self.TAGS, "tag_account_data", 4)
        self.assertIn("up to 9", error_in(caught.exception))
        await lease.close()
        self.replay(self.TAGS, "tag_account_data", 4)

    async def test_tokens_of_the_other_stream_are_not_allocated(self) -> None:
        self.replay(self.DATA, "account_data", 2, 9)
        self.sql("SELECT setval('synrepl._account_data_seq', 1, false)")
        self.assertEqual(self.sql("SELECT synrepl.append('tag_account_data', '[]')"), 10)
