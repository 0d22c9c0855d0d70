"""The simulated database keeps the record of followers as the real one does."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, TypeVar
from unittest import TestCase

from simulator.follower_database import (
    FollowerDatabase,
    FollowerRecordStore,
    UnknownFollowerStatement,
)
from synrepl.core.tokens import Token
from synrepl.storage.database import CommitUnknown, Transaction
from synrepl.storage.followers import handler_positions, named_followers
from synrepl.storage.followers.handler_positions import HandlerPosition, Place
from tests.storage.postgres import PostgresCase

T = TypeVar("T")

#: Something that is done in a transaction.
Work = Callable[[Transaction], Any]

PLACES: tuple[Place, ...] = tuple(
    (handler, stream, writer)
    for handler in ("h1", "h2")
    for stream in ("notes", "jobs")
    for writer in ("", "one")
)


def some_work(random: Random) -> Work:
    """Anything that a follower may do to its record."""
    follower = random.choice(("f1", "f2"))
    place: Place = random.choice(PLACES)
    _, stream, writer = place
    token: Token = random.randint(0, 9)
    start = random.choice((None, token))
    works: list[Work] = [
        lambda txn: handler_positions.record(
            txn, follower, [(place, HandlerPosition(token, start))]
        ),
        lambda txn: handler_positions.advance(txn, follower, place, token, token + 2),
        lambda txn: handler_positions.position(txn, follower, place),
        lambda txn: handler_positions.put(txn, follower, place, token),
        lambda txn: named_followers.record(txn, follower, {(stream, writer): token}),
        lambda txn: named_followers.record(
            txn, follower, {(stream, writer): token}, by_handler=True
        ),
        lambda txn: named_followers.inherited(txn, follower),
        lambda txn: named_followers.lower(txn, follower, stream, token),
        lambda txn: named_followers.forget(txn, follower, stream, writer),
    ]
    return random.choice(works)


def everything(txn: Transaction) -> Any:
    """All that is on record."""
    return [
        (named_followers.positions(txn, follower), handler_positions.positions(txn, follower))
        for follower in ("f1", "f2")
    ]


async def at_once(what: str) -> None:
    """A way that takes no time."""


class FakeAndPostgres(PostgresCase):
    async def test_return_the_same_results_and_records(self) -> None:
        real = self.process("real").database
        fake = FollowerDatabase(at_once, lambda what: "", FollowerRecordStore())
        random = Random(7)
        for step in range(400):
            work = some_work(random)
            answers = [await database.run("work", work) for database in (real, fake)]
            self.assertEqual(answers[0], answers[1], step)
            self.assertEqual(
                await real.run("look", everything), await fake.run("look", everything), step
            )

    async def test_roll_back_alike(self) -> None:
        def fail(txn: Transaction) -> None:
            named_followers.record(txn, "f1", {("notes", "one"): 3})
            raise ZeroDivisionError

        for database in (
            self.process("real").database,
            FollowerDatabase(at_once, lambda what: "", FollowerRecordStore()),
        ):
            with self.assertRaises(ZeroDivisionError):
                await database.run("work", fail)
            self.assertEqual(await database.run("look", everything), [({}, {}), ({}, {})])


class FollowerDatabaseTests(TestCase):
    def run_work(self, database: FollowerDatabase, work: Callable[[Transaction], T]) -> T:
        running = database.run("test", work)
        with self.assertRaises(StopIteration) as done:
            running.send(None)
        result: T = done.exception.value
        return result

    def test_refuses_an_unknown_statement(self) -> None:
        database = FollowerDatabase(at_once, lambda what: "", FollowerRecordStore())
        running = database.run("test", lambda txn: txn.execute("SELECT 1"))
        self.assertRaises(UnknownFollowerStatement, running.send, None)

    def test_loses_a_reply_with_and_without_effect(self) -> None:
        for broken, wanted in ("lost", {}), ("unknown", {("notes", "one"): 3}):
            store = FollowerRecordStore()
            database = FollowerDatabase(at_once, lambda what, broken=broken: broken, store)
            running = database.run(
                "test", lambda txn: named_followers.record(txn, "f1", {("notes", "one"): 3})
            )
            self.assertRaises(CommitUnknown, running.send, None)
            self.assertEqual(store.own("f1"), wanted)
