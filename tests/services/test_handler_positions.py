"""Handlers have their own positions: recorded, when they join, catch up or choose a view."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from synrepl.core.tokens import Range
from synrepl.services.following.consumer import StartAt, Subscription, ViewChanged
from synrepl.services.handlers import Batch
from synrepl.storage.followers.handler_positions import HandlerPosition
from synrepl.streams.definition import Fact
from synrepl.wire.dialects import LEGACY
from tests.services.handler_fixtures import (
    ONE,
    TWO,
    HandlersCase,
    InsertingHandler,
    LinearRecordingHandler,
    PerWriterRecordingHandler,
    RecordingHandler,
)
from tests.storage.samples import NOTES


class BlockingHandler(RecordingHandler):
    """Blocks at each batch until the test releases it.

    :ivar waiting: resumes the current batch
    """

    def __init__(self) -> None:
        super().__init__()
        self.waiting: Deferred[None] | None = None

    async def on_rows(self, batch: Batch) -> None:
        self.waiting = Deferred()
        await self.waiting
        await super().on_rows(batch)

    def go_on(self) -> None:
        """Let the current batch finish."""
        waiting, self.waiting = self.waiting, None
        assert waiting is not None
        waiting.callback(None)


class RecordingPositions(HandlersCase):
    """Positions outlive the process."""

    async def test_a_commit_moves_only_the_position_of_its_handler(self) -> None:
        slow = BlockingHandler()
        worker = await self.worker(
            Subscription(slow, "slow"), Subscription(InsertingHandler(), "exact")
        )
        last = await self.append("a", "b")
        worker.announce(last)
        await self.until(lambda: slow.waiting is not None)
        places = await self.places()
        self.assertEqual(places["exact", "notes", ONE].position, last)
        self.assertEqual(places["slow", "notes", ONE].position, 0)
        await worker.record()
        self.assertIn(self.record_of(), (None, 0))

        plain = RecordingHandler()  # the process died
        worker = await self.worker(
            Subscription(plain, "slow"), Subscription(InsertingHandler(), "exact")
        )
        await self.reaches(worker, last)
        self.assertEqual((plain.texts, self.seen()), (["a", "b"], ["a", "b"]))
        await worker.record()
        self.assertEqual(self.record_of(), last)

    async def test_handlers_inherit_a_record_without_handler_positions(
        self,
    ) -> None:
        first = await self.append("a", "b")
        await self.master.store.record_follower("worker1", {("notes", ONE): first})
        last = await self.append("c")
        plain = RecordingHandler()
        worker = await self.worker(
            Subscription(plain, "plain"), Subscription(InsertingHandler(), "exact")
        )
        await self.reaches(worker, last)
        self.assertEqual((plain.texts, self.seen()), (["c"], ["c"]))
        places = await self.places()
        self.assertEqual({at.started_from for at in places.values()}, {None})

        # A handler that is added later begins at its own `start`.
        late = RecordingHandler()
        worker = await self.worker(
            Subscription(plain, "plain"), Subscription(late, "late", StartAt.EARLIEST)
        )
        await self.reaches(worker, last)
        self.assertEqual(late.texts, ["a", "b", "c"])

    async def test_a_removed_handler_holds_nothing_back_and_can_come_back(
        self,
    ) -> None:
        first = await self.append("a")
        gone = RecordingHandler()
        worker = await self.worker(
            Subscription(gone, "gone"), Subscription(RecordingHandler(), "plain")
        )
        await self.reaches(worker, first)
        await worker.record()
        last = await self.append("b")
        worker = await self.worker(Subscription(RecordingHandler(), "plain"))
        await self.reaches(worker, last)
        await worker.record()
        self.assertEqual(self.record_of(), last)
        worker = await self.worker(
            Subscription(gone, "gone"), Subscription(RecordingHandler(), "plain")
        )
        await self.reaches(worker, last)
        self.assertEqual(gone.texts, ["a", "b"])

    async def test_records_positions_under_the_class_path_or_the_configured_name(
        self,
    ) -> None:
        worker = await self.worker(
            Subscription(RecordingHandler()), Subscription(RecordingHandler(), "second")
        )
        await self.reaches(worker, await self.append("a"))
        await worker.record()
        self.assertEqual(
            sorted(handler for handler, *_ in await self.places()),
            ["second", f"{RecordingHandler.__module__}:RecordingHandler"],
        )

    async def test_a_reset_sets_the_positions_of_all_handlers_in_the_lane(self) -> None:
        plain = RecordingHandler()
        worker = await self.worker(Subscription(plain, "plain"))
        await self.reaches(worker, await self.append("a", "b", "c"))
        await worker.record()
        await worker.delivery.reset("notes", ONE, 2, 0)
        self.assertEqual(plain.resets, [(ONE, 2)])
        places = await self.places()
        self.assertEqual(places["plain", "notes", ONE].position, 0)
        self.assertIsNone(self.record_of())

    async def test_records_a_handler_while_another_one_is_slow(self) -> None:
        """It does not get the facts again after a restart."""
        quick, slow = RecordingHandler(), BlockingHandler()
        worker = await self.worker(Subscription(quick, "quick"), Subscription(slow, "slow"))
        last = await self.append("a")
        worker.announce(last)
        await self.until(lambda: slow.waiting is not None)
        await worker.record()
        places = await self.places()
        self.assertEqual(places["quick", "notes", ONE].position, last)
        self.assertEqual(places["slow", "notes", ONE].position, 0)


class JoiningAFollower(HandlersCase):
    """A new handler joins a worker that already has positions."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.old = RecordingHandler()
        worker = await self.worker(Subscription(self.old, "old"))
        self.last = await self.append("a", "b", "c", "d")
        await self.reaches(worker, self.last)
        await worker.record()
        self.new = RecordingHandler()

    async def joined(self, start: StartAt | int | None, **start_of: StartAt | int) -> str:
        """Let the new handler join and get one more fact, and return the log of the worker."""
        worker = await self.worker(
            Subscription(self.old, "old"), Subscription(self.new, "new", start, start_of)
        )
        self.recorded_at_start = self.record_of()
        await self.reaches(worker, await self.append("e"))
        self.assertEqual(self.old.texts, ["a", "b", "c", "d", "e"])
        await worker.record()
        self.assertEqual(self.record_of(), self.last + 1)
        return worker.logged

    async def test_starts_at_the_earliest_fact(self) -> None:
        logged = await self.joined(StartAt.EARLIEST)
        self.assertEqual(self.new.texts, ["a", "b", "c", "d", "e"])
        self.assertIn(
            "handler new joins follower worker1: it starts at the oldest fact of notes", logged
        )
        # What it is to be given is not trimmed meanwhile.
        self.assertEqual(self.recorded_at_start, 0)

    async def test_starts_at_the_position_of_the_worker(self) -> None:
        logged = await self.joined(StartAt.NOW)
        self.assertEqual(self.new.texts, ["e"])
        self.assertIn("it starts at the worker's position in notes, without earlier facts", logged)
        self.assertIn(
            f"handler new starts at token {self.last} of notes by one, without facts up to", logged
        )
        self.assertEqual(self.recorded_at_start, self.last)
        places = await self.places()
        self.assertEqual(
            places["new", "notes", ONE], HandlerPosition(self.last + 1, started_from=self.last)
        )

    async def test_starts_at_a_token(self) -> None:
        logged = await self.joined(2)
        self.assertEqual(self.new.texts, ["c", "d", "e"])
        self.assertIn("it starts at token 2 of notes, without facts up to there", logged)
        self.assertEqual(self.recorded_at_start, 2)

    async def test_starts_at_a_token_of_one_stream(self) -> None:
        await self.joined(StartAt.NOW, notes=3)
        self.assertEqual(self.new.texts, ["d", "e"])

    async def test_starts_at_a_token_beyond_the_stream(self) -> None:
        await self.joined(self.last + 1)
        self.assertEqual(self.new.texts, [])

    async def test_the_configured_start_applies_only_once(self) -> None:
        await self.joined(2)
        again = RecordingHandler()
        worker = await self.worker(
            Subscription(self.old, "old"), Subscription(again, "new", StartAt.EARLIEST)
        )
        await self.reaches(worker, await self.append("f"))
        self.assertEqual(again.texts, ["f"])
        self.assertNotIn("joins", worker.logged)

    async def test_a_handler_that_starts_now_misses_nothing_after_a_crash(self) -> None:
        """Its start is recorded before other handlers get the next facts."""
        slow = BlockingHandler()
        worker = await self.worker(
            Subscription(slow, "new", StartAt.NOW),
            Subscription(InsertingHandler(), "exact", StartAt.NOW),
        )
        last = await self.append("e")
        worker.announce(last)
        await self.until(lambda: slow.waiting is not None)
        worker = await self.worker(
            Subscription(self.new, "new", StartAt.NOW),
            Subscription(InsertingHandler(), "exact", StartAt.NOW),
        )
        await self.reaches(worker, last)
        self.assertEqual((self.new.texts, self.seen()), (["e"], ["e"]))

    async def test_gets_every_fact_of_a_writer_that_is_new_as_well(self) -> None:
        worker = await self.worker(
            Subscription(self.old, "old"), Subscription(self.new, "new", StartAt.EARLIEST)
        )
        token = await self.append("x", writer=TWO)
        worker.announce(self.last)
        await self.reaches(worker, token, TWO, TWO)
        await self.until(lambda: worker.at("new") == self.last)
        self.assertEqual(sorted(self.new.texts), ["a", "b", "c", "d", "x"])

    async def test_starts_above_facts_that_were_trimmed(self) -> None:
        await self.on_record(self.last, one=self.last)
        trim = await self.master.store.trim(NOTES, 2, 2, 100)
        self.assertEqual(trim.upto, 2)
        await self.joined(StartAt.EARLIEST)
        self.assertEqual((self.new.texts, self.new.resets), (["c", "d", "e"], []))

    async def test_gets_every_fact_of_a_writer_that_came_while_it_was_away(self) -> None:
        """All of its facts are new, including for a handler that started at the current position."""
        worker = await self.worker(Subscription(self.new, "new", StartAt.NOW))
        await self.reaches(worker, self.last)
        await worker.record()
        token = await self.append("x", writer=TWO)
        worker = await self.worker(Subscription(self.new, "new", StartAt.NOW))
        await self.reaches(worker, token, TWO, TWO)
        await self.until(lambda: "x" in self.new.texts)
        self.assertEqual((self.new.texts, self.new.resets), (["x"], []))

    async def test_is_notified_of_trimmed_facts_of_a_writer_added_while_it_was_away(self) -> None:
        worker = await self.worker(Subscription(self.new, "new", StartAt.EARLIEST))
        await self.reaches(worker, self.last)
        await worker.record()
        token = await self.append("x", "y", writer=TWO)
        await self.on_record(token, one=self.last, two=token)
        trim = await self.master.store.trim(NOTES, token - 1, token - 1, 100)
        self.assertEqual(trim.upto, token - 1)
        worker = await self.worker(Subscription(self.new, "new", StartAt.EARLIEST))
        await self.reaches(worker, token, TWO, TWO)
        await self.until(lambda: "y" in self.new.texts)
        self.assertEqual(self.new.texts, ["a", "b", "c", "d", "y"])
        self.assertEqual([writer for writer, _ in self.new.resets], [TWO])


class CatchingUp(HandlersCase):
    """Handlers that are behind their lane."""

    async def test_a_failing_handler_holds_up_no_other_and_gets_everything_later(self) -> None:
        bad, good = RecordingHandler(), RecordingHandler()
        bad.bad = {"b"}
        worker = await self.worker(Subscription(bad, "bad"), Subscription(good, "good"))
        first = await self.append("a", "b")
        worker.announce(first)
        await self.until(lambda: good.texts == ["a", "b"])
        last = await self.append("c", "d")
        worker.announce(last)
        await self.until(lambda: good.texts == ["a", "b", "c", "d"])
        self.assertEqual((worker.position(), worker.delivery.catching_up(
            worker.delivery.consumers[0])), (0, {"notes"}))  # fmt: skip
        bad.bad.clear()
        await self.until(lambda: worker.position() == last)
        self.assertEqual(bad.texts, ["a", "b", "c", "d"])
        self.assertEqual(worker.delivery.catching_up(worker.delivery.consumers[0]), set())
        # It is in the lane again.
        await self.reaches(worker, await self.append("e"))
        self.assertEqual((bad.texts[4:], good.texts[4:]), (["e"], ["e"]))

    async def test_catch_up_ends_under_constant_load(self) -> None:
        """The rest fits one page, so the lane waits for the handler before its next batch."""
        slow, quick = BlockingHandler(), RecordingHandler()
        worker = await self.worker(Subscription(quick, "quick"))
        first = await self.append("a", "b")
        await self.reaches(worker, first)
        await worker.record()
        worker = await self.worker(
            Subscription(quick, "quick"), Subscription(slow, "slow", StartAt.EARLIEST)
        )
        worker.announce(first)
        await self.until(lambda: slow.waiting is not None)  # with all that there was
        worker.announce(await self.append("c"))
        last = await self.append("d")
        worker.announce(last)
        await self.tick()
        self.assertEqual(quick.texts, ["a", "b"])  # the lane waits
        while (worker.position() or 0) < last:
            if slow.waiting is not None:
                slow.go_on()
            await self.tick()
        self.assertEqual((slow.texts, quick.texts), (["a", "b", "c", "d"], ["a", "b", "c", "d"]))

    async def test_the_lane_does_not_wait_for_a_failing_handler_that_is_near(self) -> None:
        bad, quick = RecordingHandler(), RecordingHandler()
        bad.bad = {"a"}
        worker = await self.worker(Subscription(quick, "quick"))
        first = await self.append("a")
        await self.reaches(worker, first)
        await worker.record()
        worker = await self.worker(
            Subscription(quick, "quick"), Subscription(bad, "bad", StartAt.EARLIEST)
        )
        worker.announce(first)
        await self.until(lambda: bool(worker.delivery.failures.failing))
        worker.announce(await self.append("b"))
        await self.until(lambda: quick.texts == ["a", "b"])
        bad.bad.clear()
        await self.until(lambda: bad.texts == ["a", "b"])

    async def test_is_notified_of_facts_trimmed_before_delivery(self) -> None:
        """Only that handler is notified."""
        bad, good = RecordingHandler(), RecordingHandler()
        bad.bad = {"b"}
        worker = await self.worker(Subscription(bad, "bad"), Subscription(good, "good"))
        await self.reaches(worker, await self.append("a"))
        second = await self.append("b")
        worker.announce(second)
        await self.until(lambda: good.texts == ["a", "b"])
        third, last = await self.append("c"), await self.append("d")
        worker.announce(last)
        await self.until(lambda: good.texts == ["a", "b", "c", "d"])
        await self.on_record(last, one=last)
        await self.master.store.trim(NOTES, third, third, 100)
        bad.bad.clear()
        await self.until(lambda: worker.position() == last)
        self.assertEqual((bad.texts, bad.resets), (["a", "b", "d"], [(ONE, third)]))
        self.assertEqual(good.resets, [])


class ChoosingAView(HandlersCase):
    """Handlers whose view is not that of the connection."""

    async def test_gets_the_linear_view_on_a_per_writer_connection(self) -> None:
        linear, plain = LinearRecordingHandler(), RecordingHandler()
        worker = await self.worker(Subscription(linear, "linear"), Subscription(plain, "plain"))
        await self.append("a1")
        two = await self.append("b2", writer=TWO)
        one = await self.append("c1")
        worker.announce(one)
        worker.announce(two, TWO)
        await self.until(lambda: sorted(plain.texts) == ["a1", "b2", "c1"])
        self.assertEqual(linear.texts, [])  # the linear position has passed none of them
        await self.on_record(two, one=one, two=two)
        await self.until(lambda: linear.texts == ["a1", "b2"])
        await self.on_record(one)
        await self.until(lambda: linear.texts == ["a1", "b2", "c1"])
        self.assertEqual({writer for writer, *_ in linear.batches}, {""})
        # It counts for what all handlers have dealt with, of every writer.
        await self.until(lambda: (worker.position(), worker.position(TWO)) == (one, two))
        await worker.record()
        places = await self.places()
        self.assertEqual(places["linear", "notes", ""].position, one)
        self.assertEqual((self.record_of(), self.record_of(TWO), self.record_of("")), (3, 2, None))

        again = LinearRecordingHandler()
        worker = await self.worker(Subscription(again, "linear"), Subscription(plain, "plain"))
        last = await self.append("d2", writer=TWO)
        await self.on_record(last, two=last)
        worker.announce(last, TWO)
        await self.until(lambda: again.texts == ["d2"])

    async def test_gets_the_per_writer_view_on_a_linear_connection(self) -> None:
        by_writer = PerWriterRecordingHandler()
        worker = await self.worker(Subscription(by_writer, "by_writer"), dialect=LEGACY)
        await self.append("a1")
        two = await self.append("b2", writer=TWO)
        one = await self.append("c1")
        worker.announce(0, None)
        await self.on_record(0, one=0, two=two)
        await self.until(lambda: by_writer.texts == ["b2"])  # the linear position is at 0
        self.assertEqual(worker.position(""), 0)
        await self.on_record(one, one=one, two=two)
        await self.reaches(worker, one, "", None)
        self.assertEqual(by_writer.texts, ["b2", "a1", "c1"])
        self.assertEqual([writer for writer, *_ in by_writer.batches], [TWO, ONE])
        await worker.record()
        self.assertEqual(self.record_of(""), one)

    async def test_a_linear_position_is_carried_over_to_every_writer(self) -> None:
        plain = RecordingHandler()
        worker = await self.worker(Subscription(plain, "plain"), dialect=LEGACY)
        await self.append("a1")
        last = await self.append("b2", writer=TWO)
        worker.announce(0, None)
        await self.on_record(last, one=1, two=last)
        worker.follower.received([])
        await worker.delivery.deliver(Batch("notes", "", 0, last, (await self.page(last))))
        worker.delivery.lane_moved(("notes", ""), last)
        await worker.record()
        now = RecordingHandler()  # and follows writers from now on
        worker = await self.worker(Subscription(now, "plain"))
        token = await self.append("c2", writer=TWO)
        worker.announce(1)
        await self.reaches(worker, token, TWO, TWO)
        self.assertEqual((plain.texts, now.texts), (["a1", "b2"], ["c2"]))

    async def page(self, upto: int) -> list[Fact]:
        """The facts of all writers up to a token."""
        found = await self.master.store.page(NOTES, Range(0, upto), None, 100)
        return list(found.facts)

    async def test_refuses_the_linear_view_for_a_name_with_per_writer_positions(
        self,
    ) -> None:
        worker = await self.worker(Subscription(RecordingHandler(), "plain"))
        await self.reaches(worker, await self.append("a"))
        await worker.record()
        with self.assertRaises(ViewChanged) as caught:
            await self.worker(Subscription(LinearRecordingHandler(), "plain"))
        self.assertIn("handler 'plain' has per-writer positions of 'notes'", str(caught.exception))
