"""Facts that a handler cannot process become dead letters, which are listed and replayed."""

from __future__ import annotations

from synrepl.services.following.consumer import Subscription
from synrepl.services.handlers import Batch
from synrepl.storage.database import Transaction
from synrepl.storage.followers import dead_letters
from synrepl.storage.followers.dead_letters import (
    DeadLetter,
    DeadLetterFilter,
    FactsOfDeadLettersLost,
)
from synrepl.streams.definition import Fact
from tests.services.handler_fixtures import (
    ONE,
    HandlersCase,
    InsertingHandler,
    RecordingHandler,
    WorkerProcess,
    texts_of,
)
from tests.storage.samples import note

ANY = DeadLetterFilter()


class DeadLetterCase(HandlersCase):
    async def letters(self, name: str = "worker1") -> list[DeadLetter]:
        """The dead letters."""
        return await self.master.database.run(
            "letters", lambda txn: dead_letters.look(txn, name, ANY), read_only=True
        )

    async def replay(self, worker: WorkerProcess, wanted: DeadLetterFilter = ANY) -> None:
        """Request a replay, and run it."""
        await self.master.database.run(
            "replay", lambda txn: dead_letters.request_replay(txn, "worker1", wanted)
        )
        await worker.delivery.dead_letters.poll()

    async def store_dead_letter(
        self, handler: RecordingHandler | InsertingHandler, attempts: int = 2
    ) -> WorkerProcess:
        """A worker whose handler failed at two facts out of seven."""
        handler.bad = {"bad1", "bad2"}
        worker = await self.worker(Subscription(handler, "h", attempts=attempts))
        self.last = await self.append("a", "b", "bad1", "c", "bad2", "d", "e")
        await self.reaches(worker, self.last)
        await worker.delivery.dead_letters.poll()
        return worker


class AddingDeadLetters(DeadLetterCase):
    """Facts become dead letters after the last attempt."""

    async def test_a_plain_handler_gets_all_other_facts(self) -> None:
        plain = RecordingHandler()
        worker = await self.store_dead_letter(plain)
        self.assertEqual(plain.texts, ["a", "b", "c", "d", "e"])
        first, second = await self.letters()
        self.assertEqual(
            (first.place, second.place), (("h", "notes", ONE, 3), ("h", "notes", ONE, 5))
        )
        self.assertEqual(first.fact.rows, '[["bad1",null]]')
        self.assertEqual(
            (first.fact.reason.error, first.fact.reason.message, first.fact.attempts),
            ("CannotProcess", "not bad1", 2),
        )
        self.assertIn("handler_fixtures.py", first.fact.reason.traceback)
        self.assertIn(
            "stored as a dead letter after 2 attempts (CannotProcess: not bad1)", worker.logged
        )
        status = worker.delivery.dead_letters.to_json()
        self.assertEqual((status["count"], len(status["newest"])), (2, 2))
        self.assertEqual(worker.delivery.dead_letters.counts, {"h": 2})
        self.assertEqual(worker.delivery.failures.failing, {})

    async def test_a_transactional_handler_keeps_the_effects_of_all_other_facts(self) -> None:
        await self.store_dead_letter(InsertingHandler())
        self.assertEqual(self.seen(), ["a", "b", "c", "d", "e"])
        self.assertEqual([letter.fact.token for letter in await self.letters()], [3, 5])
        self.assertEqual((await self.places())["h", "notes", ONE].position, self.last)

    async def test_dead_letters_commit_with_the_position_and_the_other_effects(
        self,
    ) -> None:
        self.sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
            " $$BEGIN RAISE 'not now'; END$$"
        )
        self.sql(
            "CREATE TRIGGER refuse BEFORE INSERT ON synrepl._dead_letters EXECUTE FUNCTION refuse()"
        )
        exact = InsertingHandler()
        exact.bad = {"bad"}
        worker = await self.worker(Subscription(exact, "h", attempts=2))
        last = await self.append("a", "bad", "b")
        worker.announce(last)
        await self.until(lambda: worker.delivery.failures.total["h"] >= 2)
        self.assertEqual((self.seen(), (await self.places())["h", "notes", ONE].position), ([], 0))
        self.sql("DROP TRIGGER refuse ON synrepl._dead_letters")
        await self.until(lambda: worker.position() == last)
        self.assertEqual((self.seen(), len(await self.letters())), (["a", "b"], 1))
        moved = self.rows("SELECT xmin::text FROM synrepl._handler_positions")
        self.assertEqual(self.rows("SELECT xmin::text FROM synrepl._dead_letters"), moved)

    async def test_a_single_fact_becomes_a_dead_letter_at_the_first_attempt(self) -> None:
        plain = RecordingHandler()
        plain.bad = {"bad"}
        worker = await self.worker(Subscription(plain, "h", attempts=1))
        await self.reaches(worker, await self.append("bad"))
        (letter,) = await self.letters()
        self.assertEqual(letter.fact.attempts, 1)
        await self.reaches(worker, await self.append("a"))
        self.assertEqual(plain.texts, ["a"])

    async def test_without_a_policy_no_fact_becomes_a_dead_letter(self) -> None:
        plain = RecordingHandler()
        plain.bad = {"bad"}
        worker = await self.worker(Subscription(plain, "h"))
        last = await self.append("a", "bad")
        worker.announce(last)
        await self.until(lambda: worker.delivery.failures.total["h"] >= 3)
        self.assertEqual(await self.letters(), [])
        plain.bad.clear()
        await self.until(lambda: worker.position() == last)
        self.assertEqual(plain.texts, ["a", "bad"])

    async def test_finds_the_fact_that_violates_a_deferred_constraint(self) -> None:
        self.sql("ALTER TABLE seen ADD UNIQUE (text) DEFERRABLE INITIALLY DEFERRED")
        worker = await self.worker(Subscription(InsertingHandler(), "h", attempts=2))
        last = await self.append("a", "b", "a", "c")
        await self.reaches(worker, last)
        self.assertEqual(self.seen(), ["a", "b", "c"])
        (letter,) = await self.letters()
        self.assertEqual((letter.fact.token, letter.fact.reason.error), (3, "UniqueViolation"))

    async def test_finds_the_fact_whose_statement_the_database_refuses(self) -> None:
        class Divides(InsertingHandler):
            def apply(self, txn: Transaction, batch: object) -> None:
                super().apply(txn, batch)  # type: ignore[arg-type]
                for text in texts_of(batch):  # type: ignore[arg-type]
                    txn.execute("SELECT 1 / (CASE WHEN %s = 'zero' THEN 0 ELSE 1 END)", (text,))

        worker = await self.worker(Subscription(Divides(), "h", attempts=2))
        await self.reaches(worker, await self.append("a", "zero", "b"))
        self.assertEqual(self.seen(), ["a", "b"])
        self.assertEqual([each.fact.token for each in await self.letters()], [2])

    async def test_records_a_fact_once_that_comes_twice_in_an_unordered_batch(self) -> None:
        plain = RecordingHandler()
        plain.bad = {"bad"}
        worker = await self.worker(Subscription(plain, "h", attempts=1))
        facts = [
            Fact(token, ONE, (note(text),)) for token, text in ((2, "bad"), (1, "a"), (2, "bad"))
        ]
        await worker.delivery.deliver(Batch("notes", ONE, 0, 2, facts, ordered=False))
        self.assertEqual([letter.fact.token for letter in await self.letters()], [2])
        self.assertEqual(plain.texts, ["a"])

    async def test_an_unavailable_database_makes_no_dead_letters(self) -> None:
        """The fact is not to blame, whatever the handler raises."""

        class Asks(RecordingHandler):
            async def on_rows(handler, batch: object) -> None:  # noqa: N805
                await database.run("ask", lambda txn: txn.execute("SELECT 1"), read_only=True)
                await super().on_rows(batch)  # type: ignore[arg-type]

        asking = self.process("asking")
        database = asking.database
        handler = Asks()
        worker = await self.worker(Subscription(handler, "h", attempts=1))
        await database.close()
        last = await self.append("a")
        worker.announce(last)
        await self.until(lambda: worker.delivery.failures.total["h"] >= 2)
        self.assertEqual(await self.letters(), [])
        database = self.process("again").database
        await self.until(lambda: worker.position() == last)
        self.assertEqual(handler.texts, ["a"])


class ReplayingDeadLetters(DeadLetterCase):
    """An operator requests the replay."""

    async def test_deletes_a_letter_that_the_handler_processes(self) -> None:
        plain = RecordingHandler()
        worker = await self.store_dead_letter(plain)
        plain.bad.clear()
        await self.replay(worker, DeadLetterFilter(token=5))
        self.assertEqual(plain.replayed, ["bad2"])
        self.assertEqual([letter.fact.token for letter in await self.letters()], [3])
        await self.replay(worker)
        self.assertEqual(plain.texts, ["a", "b", "c", "d", "e", "bad2", "bad1"])
        self.assertEqual(await self.letters(), [])
        self.assertEqual(worker.delivery.dead_letters.counts, {})
        self.assertEqual(worker.at("h"), self.last)

    async def test_a_transactional_handler_applies_a_letter_exactly_once(self) -> None:
        exact = InsertingHandler()
        worker = await self.store_dead_letter(exact)
        exact.bad.clear()
        (first, _) = await self.letters()
        await self.replay(worker)
        self.assertEqual(sorted(self.seen()), ["a", "b", "bad1", "bad2", "c", "d", "e"])
        # Another attempt, as after a commit whose answer was lost, finds it gone.
        self.assertTrue(await worker.delivery.dead_letters.replay(first))
        self.assertEqual(self.seen().count("bad1"), 1)

    async def test_keeps_a_letter_that_fails_again_with_the_new_reason(self) -> None:
        for handler in (RecordingHandler(), InsertingHandler()):
            with self.subTest(handler):
                worker = await self.store_dead_letter(handler)
                handler.bad = {"bad1"}
                await self.replay(worker)
                (letter,) = await self.letters()
                self.assertEqual((letter.fact.token, letter.fact.attempts), (3, 3))
                self.assertFalse(letter.replay_requested)
                await self.master.database.run(
                    "discard", lambda txn: dead_letters.discard(txn, "worker1", ANY)
                )
                await super().setUp()

    async def test_does_not_apply_a_letter_that_was_discarded_meanwhile(self) -> None:
        exact = InsertingHandler()
        worker = await self.store_dead_letter(exact)
        exact.bad.clear()
        letters = await self.letters()
        await self.master.database.run(
            "discard", lambda txn: dead_letters.discard(txn, "worker1", ANY)
        )
        for letter in letters:
            await worker.delivery.dead_letters.replay(letter)
        self.assertEqual(self.seen(), ["a", "b", "c", "d", "e"])

    async def test_does_not_replay_letters_of_other_followers(self) -> None:
        plain = RecordingHandler()
        await self.store_dead_letter(plain)
        other = await self.worker(Subscription(plain, "h"), name="worker2")
        await other.delivery.dead_letters.poll()
        self.assertEqual(other.delivery.dead_letters.counts, {})
        await self.master.database.run(
            "replay", lambda txn: dead_letters.request_replay(txn, "worker1", ANY)
        )
        await other.delivery.dead_letters.poll()
        self.assertEqual((plain.replayed, len(await self.letters())), ([], 2))


class DeadLettersLostInAFailover(DeadLetterCase):
    """A failover has lost the fact of one of two dead letters."""

    async def lose(self, plain: RecordingHandler) -> WorkerProcess:
        worker = await self.store_dead_letter(plain)
        self.sql(
            "INSERT INTO synrepl._incarnations VALUES (2, '', '', now(), now(), 'test');"
            "INSERT INTO synrepl._lost_ranges VALUES (2, 'notes', '', 2, 1000, 7);"
            "ALTER TABLE synrepl.notes DISABLE TRIGGER ALL;"
            "DELETE FROM synrepl.notes WHERE stream_id = 5"
        )
        return worker

    async def test_shows_which_letters_lost_their_facts(self) -> None:
        await self.lose(RecordingHandler())
        found = await self.letters()
        self.assertEqual([(one.fact.token, one.is_lost) for one in found], [(3, False), (5, True)])
        self.assertEqual([one.to_json()["lost"] for one in found], [False, True])
        self.sql("UPDATE synrepl._streams SET trimmed = 5 WHERE stream = 'notes'")
        self.assertFalse(any(one.is_lost for one in await self.letters()))

    async def test_replays_only_letters_whose_facts_survive(self) -> None:
        plain = RecordingHandler()
        worker = await self.lose(plain)
        plain.bad = set()
        await self.replay(worker)
        self.assertEqual(plain.texts[-1], "bad1")
        (left,) = await self.letters()
        self.assertEqual((left.fact.token, left.replay_requested), (5, False))
        with self.assertRaises(FactsOfDeadLettersLost) as caught:
            await self.replay(worker, DeadLetterFilter(token=5))
        self.assertIn("lost the facts of these dead letters: 5 of notes;", str(caught.exception))

    async def test_refuses_a_replay_requested_before_the_failover(self) -> None:
        plain = RecordingHandler()
        worker = await self.lose(plain)
        plain.bad = set()
        self.sql("UPDATE synrepl._dead_letters SET replay_requested_at = now() WHERE token = 5")
        await worker.delivery.dead_letters.poll()
        self.assertNotIn("bad2", plain.texts)
        found = (await self.letters())[-1]
        self.assertEqual(found.fact.reason.error, "FactsOfDeadLettersLost")
        self.assertFalse(found.replay_requested)
