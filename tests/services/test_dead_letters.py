"""Facts that a handler cannot take are set aside, listed, and handed over again."""

from __future__ import annotations

from synrepl.services.following.consumer import Subscription
from synrepl.services.handlers import Batch
from synrepl.storage import dead_letters
from synrepl.storage.database import Transaction
from synrepl.storage.dead_letters import DeadLetter, DeadLetterFilter, FactsOfDeadLettersLost
from synrepl.streams.definition import Fact
from tests.services.handlers_world import ONE, Exact, HandlersCase, Plain, Worker, texts_of
from tests.storage.samples import note

ANY = DeadLetterFilter()


class DeadLetterCase(HandlersCase):
    async def letters(self, name: str = "worker1") -> list[DeadLetter]:
        """What has been set aside."""
        return await self.master.database.run(
            "letters", lambda txn: dead_letters.look(txn, name, ANY), read_only=True
        )

    async def replay(self, worker: Worker, wanted: DeadLetterFilter = ANY) -> None:
        """Ask for a replay, and have it done."""
        await self.master.database.run(
            "replay", lambda txn: dead_letters.request_replay(txn, "worker1", wanted)
        )
        await worker.delivery.dead_letters.poll()

    async def set_aside(self, handler: Plain | Exact, attempts: int = 2) -> Worker:
        """A worker whose handler could not take two facts out of seven."""
        handler.bad = {"bad1", "bad2"}
        worker = await self.worker(Subscription(handler, "h", attempts=attempts))
        self.last = await self.append("a", "b", "bad1", "c", "bad2", "d", "e")
        await self.reaches(worker, self.last)
        await worker.delivery.dead_letters.poll()
        return worker


class SetAside(DeadLetterCase):
    """After the last attempt."""

    async def test_a_plain_handler_gets_all_others(self) -> None:
        plain = Plain()
        worker = await self.set_aside(plain)
        self.assertEqual(plain.texts, ["a", "b", "c", "d", "e"])
        first, second = await self.letters()
        self.assertEqual(
            (first.place, second.place), (("h", "notes", ONE, 3), ("h", "notes", ONE, 5))
        )
        self.assertEqual(first.fact.rows, '[["bad1",null]]')
        self.assertEqual(
            (first.fact.reason.error, first.fact.reason.message, first.fact.attempts),
            ("CannotTake", "not bad1", 2),
        )
        self.assertIn("handlers_world.py", first.fact.reason.traceback)
        self.assertIn(
            "set aside as a dead letter after 2 attempts (CannotTake: not bad1)", worker.said
        )
        status = worker.delivery.dead_letters.to_json()
        self.assertEqual((status["count"], len(status["newest"])), (2, 2))
        self.assertEqual(worker.delivery.dead_letters.counts, {"h": 2})
        self.assertEqual(worker.delivery.failures.failing, {})

    async def test_a_transactional_handler_has_the_effects_of_all_others(self) -> None:
        await self.set_aside(Exact())
        self.assertEqual(self.seen(), ["a", "b", "c", "d", "e"])
        self.assertEqual([letter.fact.token for letter in await self.letters()], [3, 5])
        self.assertEqual((await self.places())["h", "notes", ONE].position, self.last)

    async def test_it_commits_together_with_the_position_and_the_effects_of_the_others(
        self,
    ) -> None:
        self.sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
            " $$BEGIN RAISE 'not now'; END$$"
        )
        self.sql(
            "CREATE TRIGGER refuse BEFORE INSERT ON synrepl._dead_letters EXECUTE FUNCTION refuse()"
        )
        exact = Exact()
        exact.bad = {"bad"}
        worker = await self.worker(Subscription(exact, "h", attempts=2))
        last = await self.append("a", "bad", "b")
        worker.hear(last)
        await self.until(lambda: worker.delivery.failures.total["h"] >= 2)
        self.assertEqual((self.seen(), (await self.places())["h", "notes", ONE].position), ([], 0))
        self.sql("DROP TRIGGER refuse ON synrepl._dead_letters")
        await self.until(lambda: worker.position() == last)
        self.assertEqual((self.seen(), len(await self.letters())), (["a", "b"], 1))
        moved = self.rows("SELECT xmin::text FROM synrepl._handler_positions")
        self.assertEqual(self.rows("SELECT xmin::text FROM synrepl._dead_letters"), moved)

    async def test_a_lone_fact_at_the_first_attempt(self) -> None:
        plain = Plain()
        plain.bad = {"bad"}
        worker = await self.worker(Subscription(plain, "h", attempts=1))
        await self.reaches(worker, await self.append("bad"))
        (letter,) = await self.letters()
        self.assertEqual(letter.fact.attempts, 1)
        await self.reaches(worker, await self.append("a"))
        self.assertEqual(plain.texts, ["a"])

    async def test_without_a_policy_nothing_is_set_aside(self) -> None:
        plain = Plain()
        plain.bad = {"bad"}
        worker = await self.worker(Subscription(plain, "h"))
        last = await self.append("a", "bad")
        worker.hear(last)
        await self.until(lambda: worker.delivery.failures.total["h"] >= 3)
        self.assertEqual(await self.letters(), [])
        plain.bad.clear()
        await self.until(lambda: worker.position() == last)
        self.assertEqual(plain.texts, ["a", "bad"])

    async def test_constraints_that_wait_for_the_commit(self) -> None:
        self.sql("ALTER TABLE seen ADD UNIQUE (text) DEFERRABLE INITIALLY DEFERRED")
        worker = await self.worker(Subscription(Exact(), "h", attempts=2))
        last = await self.append("a", "b", "a", "c")
        await self.reaches(worker, last)
        self.assertEqual(self.seen(), ["a", "b", "c"])
        (letter,) = await self.letters()
        self.assertEqual((letter.fact.token, letter.fact.reason.error), (3, "UniqueViolation"))

    async def test_statements_that_the_database_refuses(self) -> None:
        class Divides(Exact):
            def apply(self, txn: Transaction, batch: object) -> None:
                super().apply(txn, batch)  # type: ignore[arg-type]
                for text in texts_of(batch):  # type: ignore[arg-type]
                    txn.execute("SELECT 1 / (CASE WHEN %s = 'zero' THEN 0 ELSE 1 END)", (text,))

        worker = await self.worker(Subscription(Divides(), "h", attempts=2))
        await self.reaches(worker, await self.append("a", "zero", "b"))
        self.assertEqual(self.seen(), ["a", "b"])
        self.assertEqual([each.fact.token for each in await self.letters()], [2])

    async def test_a_fact_that_comes_twice_in_a_batch_without_order(self) -> None:
        plain = Plain()
        plain.bad = {"bad"}
        worker = await self.worker(Subscription(plain, "h", attempts=1))
        facts = [
            Fact(token, ONE, (note(text),)) for token, text in ((2, "bad"), (1, "a"), (2, "bad"))
        ]
        await worker.delivery.deliver(Batch("notes", ONE, 0, 2, facts, ordered=False))
        self.assertEqual([letter.fact.token for letter in await self.letters()], [2])
        self.assertEqual(plain.texts, ["a"])

    async def test_a_database_that_is_away_is_no_reason(self) -> None:
        """Whatever a handler says of it, the fact is not to blame."""

        class Asks(Plain):
            async def on_rows(handler, batch: object) -> None:  # noqa: N805
                await database.run("ask", lambda txn: txn.execute("SELECT 1"), read_only=True)
                await super().on_rows(batch)  # type: ignore[arg-type]

        asking = self.process("asking")
        database = asking.database
        handler = Asks()
        worker = await self.worker(Subscription(handler, "h", attempts=1))
        await database.close()
        last = await self.append("a")
        worker.hear(last)
        await self.until(lambda: worker.delivery.failures.total["h"] >= 2)
        self.assertEqual(await self.letters(), [])
        database = self.process("again").database
        await self.until(lambda: worker.position() == last)
        self.assertEqual(handler.texts, ["a"])


class Replayed(DeadLetterCase):
    """By somebody who asks for it."""

    async def test_what_a_handler_takes_is_gone(self) -> None:
        plain = Plain()
        worker = await self.set_aside(plain)
        plain.bad.clear()
        await self.replay(worker, DeadLetterFilter(token=5))
        self.assertEqual(plain.replayed, ["bad2"])
        self.assertEqual([letter.fact.token for letter in await self.letters()], [3])
        await self.replay(worker)
        self.assertEqual(plain.texts, ["a", "b", "c", "d", "e", "bad2", "bad1"])
        self.assertEqual(await self.letters(), [])
        self.assertEqual(worker.delivery.dead_letters.counts, {})
        self.assertEqual(worker.at("h"), self.last)

    async def test_a_transactional_handler_takes_it_exactly_once(self) -> None:
        exact = Exact()
        worker = await self.set_aside(exact)
        exact.bad.clear()
        (first, _) = await self.letters()
        await self.replay(worker)
        self.assertEqual(sorted(self.seen()), ["a", "b", "bad1", "bad2", "c", "d", "e"])
        # Another attempt, as after a commit whose answer was lost, finds it gone.
        calls = worker.delivery._calls
        self.assertTrue(await calls.replay(worker.delivery.consumers[0], first))
        self.assertEqual(self.seen().count("bad1"), 1)

    async def test_what_it_cannot_take_again_stays_with_the_new_reason(self) -> None:
        for handler in (Plain(), Exact()):
            with self.subTest(handler):
                worker = await self.set_aside(handler)
                handler.bad = {"bad1"}
                await self.replay(worker)
                (letter,) = await self.letters()
                self.assertEqual((letter.fact.token, letter.fact.attempts), (3, 3))
                self.assertFalse(letter.replay_requested)
                await self.master.database.run(
                    "discard", lambda txn: dead_letters.discard(txn, "worker1", ANY)
                )
                await super().setUp()

    async def test_one_that_was_discarded_meanwhile_is_not_applied(self) -> None:
        exact = Exact()
        worker = await self.set_aside(exact)
        exact.bad.clear()
        letters = await self.letters()
        await self.master.database.run(
            "discard", lambda txn: dead_letters.discard(txn, "worker1", ANY)
        )
        for letter in letters:
            await worker.delivery._calls.replay(worker.delivery.consumers[0], letter)
        self.assertEqual(self.seen(), ["a", "b", "c", "d", "e"])

    async def test_those_of_other_followers_are_left_alone(self) -> None:
        plain = Plain()
        await self.set_aside(plain)
        other = await self.worker(Subscription(plain, "h"), name="worker2")
        await other.delivery.dead_letters.poll()
        self.assertEqual(other.delivery.dead_letters.counts, {})
        await self.master.database.run(
            "replay", lambda txn: dead_letters.request_replay(txn, "worker1", ANY)
        )
        await other.delivery.dead_letters.poll()
        self.assertEqual((plain.replayed, len(await self.letters())), ([], 2))


class LostByAFailover(DeadLetterCase):
    """A failover has lost the fact of one of two dead letters, and left the other one."""

    async def lose(self, plain: Plain) -> Worker:
        worker = await self.set_aside(plain)
        self.sql(
            "INSERT INTO synrepl._incarnations VALUES (2, '', '', now(), now(), 'test');"
            "INSERT INTO synrepl._lost_ranges VALUES (2, 'notes', '', 2, 1000, 7);"
            "ALTER TABLE synrepl.notes DISABLE TRIGGER ALL;"
            "DELETE FROM synrepl.notes WHERE stream_id = 5"
        )
        return worker

    async def test_the_lost_one_is_told_from_the_one_that_is_left(self) -> None:
        await self.lose(Plain())
        found = await self.letters()
        self.assertEqual([(one.fact.token, one.is_lost) for one in found], [(3, False), (5, True)])
        self.assertEqual([one.to_json()["lost"] for one in found], [False, True])
        self.sql("UPDATE synrepl._streams SET trimmed = 5 WHERE stream = 'notes'")
        self.assertFalse(any(one.is_lost for one in await self.letters()))

    async def test_only_the_one_that_is_left_is_replayed(self) -> None:
        plain = Plain()
        worker = await self.lose(plain)
        plain.bad = set()
        await self.replay(worker)
        self.assertEqual(plain.texts[-1], "bad1")
        (left,) = await self.letters()
        self.assertEqual((left.fact.token, left.replay_requested), (5, False))
        with self.assertRaises(FactsOfDeadLettersLost) as caught:
            await self.replay(worker, DeadLetterFilter(token=5))
        self.assertIn("lost the facts of these dead letters: 5 of notes;", str(caught.exception))

    async def test_a_replay_that_was_asked_for_before_is_refused(self) -> None:
        plain = Plain()
        worker = await self.lose(plain)
        plain.bad = set()
        self.sql("UPDATE synrepl._dead_letters SET replay_requested_at = now() WHERE token = 5")
        await worker.delivery.dead_letters.poll()
        self.assertNotIn("bad2", plain.texts)
        found = (await self.letters())[-1]
        self.assertEqual(found.fact.reason.error, "FactsOfDeadLettersLost")
        self.assertFalse(found.replay_requested)
