"""Scripts whose statements a connection plans once."""

from __future__ import annotations

from synrepl.storage.database import (
    DeferredScript,
    Isolation,
    PlannedOnce,
    Script,
    StalePlans,
    Transaction,
    UniqueViolation,
)
from tests.storage.postgres import PostgresCase

_ADD = PlannedOnce("INSERT INTO planned (number, name) VALUES (%s, %s)")
_SUM = PlannedOnce("SELECT sum(number), min(name) FROM planned WHERE number < %s")
_NAMES = "SELECT name FROM pg_prepared_statements WHERE statement LIKE '%planned%'"
_PLANS = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%planned%'"


class Scripts(PostgresCase):
    """Over one connection."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.database = self.process("one").database
        self.sql("CREATE TABLE planned (number integer PRIMARY KEY, name text)")

    async def test_the_result_is_that_of_the_last_part(self) -> None:
        def work(txn: Transaction) -> list[tuple[object, ...]]:
            script = Script([_ADD, "UPDATE planned SET number = number + 1", _SUM])
            found = []
            for number in (1, 10, 100):
                txn.execute(script, (number, f"50% of {number}", 1_000))
                found.append(txn.fetchone())
            txn.execute(_PLANS)
            self.assertEqual(txn.fetchone()[0], 2)
            return found

        rows = await self.database.run("a test", work)
        self.assertEqual(rows, [(2, "50% of 1"), (14, "50% of 1"), (117, "50% of 1")])

    async def test_the_text_of_a_script_does_the_same(self) -> None:
        script = Script([_ADD, _SUM])

        def work(txn: Transaction) -> object:
            return txn.execute(str(script), (1, "one", 9)).fetchone()

        self.assertEqual(await self.database.run("a test", work), (1, "one"))

    async def test_parameters_have_names_or_places(self) -> None:
        named = PlannedOnce("SELECT %(name)s::text, %(number)s::int, %(name)s::text || 'planned'")

        def work(txn: Transaction) -> list[tuple[object, ...]]:
            found = []
            for number in range(3):
                txn.execute(Script([named]), {"name": "a%b", "number": number, "unused": 1})
                found.append(txn.fetchone())
            return found

        rows = await self.database.run("a test", work)
        self.assertEqual(rows, [("a%b", number, "a%bplanned") for number in range(3)])

    async def test_a_script_that_failed_halfway_can_be_run_again(self) -> None:
        def add_twice(txn: Transaction) -> None:
            txn.execute(Script([_ADD, _ADD, _SUM]), (1, "one", 1, "again", 9))

        for _ in range(2):
            with self.assertRaises(UniqueViolation):
                await self.database.run("a test", add_twice)

        def add(txn: Transaction) -> object:
            return txn.execute(Script([_ADD, _SUM]), (1, "one", 9)).fetchone()

        self.assertEqual(await self.database.run("a test", add), (1, "one"))

    async def test_a_snapshot_can_be_read_after_a_script_failed(self) -> None:
        def add_twice(txn: Transaction) -> None:
            txn.execute(Script([_ADD, _ADD, _SUM]), (1, "one", 1, "again", 9))

        with self.assertRaises(UniqueViolation):
            await self.database.run("a test", add_twice)
        found = await self.database.run(
            "a test",
            lambda txn: txn.execute("SELECT count(*) FROM planned").fetchone(),
            read_only=True,
            isolation=Isolation.REPEATABLE_READ,
        )
        self.assertEqual(found, (0,))

    async def run_sum(self) -> object:
        script = Script([_SUM])
        return await self.database.run(
            "a test", lambda txn: txn.execute(script, (1_000,)).fetchone()
        )

    async def test_statements_that_the_server_forgot_are_prepared_again(self) -> None:
        """As after DISCARD ALL, or when a connection pooler chose another connection."""
        self.sql("INSERT INTO planned VALUES (1, 'one')")
        self.assertEqual(await self.run_sum(), (1, "one"))
        await self.database.run("forget", lambda txn: txn.execute("DEALLOCATE ALL") and None)
        self.assertEqual(await self.run_sum(), (1, "one"))
        self.assertEqual(await self.run_sum(), (1, "one"))

    async def test_so_are_those_that_are_sent_with_the_commit(self) -> None:
        def add(txn: Transaction, number: int) -> None:
            txn.execute(DeferredScript([_ADD]), (number, "added"))

        await self.database.run("a test", lambda txn: add(txn, 1))
        await self.database.run("forget", lambda txn: txn.execute("DEALLOCATE ALL") and None)
        await self.database.run("a test", lambda txn: add(txn, 2))
        self.assertEqual(await self.run_sum(), (3, "added"))

    async def test_a_plan_whose_result_has_another_type_is_made_again(self) -> None:
        self.sql("INSERT INTO planned VALUES (1, 'one')")
        self.assertEqual(await self.run_sum(), (1, "one"))
        self.sql("ALTER TABLE planned ALTER COLUMN number TYPE double precision")
        self.assertEqual(await self.run_sum(), (1.0, "one"))

    async def test_a_statement_that_somebody_else_prepared_is_prepared_again(self) -> None:
        self.sql("INSERT INTO planned VALUES (1, 'one')")
        await self.run_sum()
        name = await self.database.run("names", lambda txn: txn.execute(_NAMES).fetchone()[0])
        self.database = self.process("two").database
        await self.database.run(
            "another's", lambda txn: txn.execute(f"PREPARE {name} AS SELECT 'not this'") and None
        )
        self.assertEqual(await self.run_sum(), (1, "one"))

    async def test_an_error_of_that_kind_that_stays_is_given_up(self) -> None:
        self.sql("INSERT INTO planned VALUES (1, 'one')")
        script, runs = Script([_SUM]), list[int]()

        def work(txn: Transaction) -> None:
            txn.execute(script, (1_000,))
            runs.append(1)
            txn.execute("DEALLOCATE ALL")
            txn.execute(script, (1_000,))

        with self.assertRaisesRegex(StalePlans, "26000.*does not exist.*session mode"):
            await self.database.run("a test", work)
        self.assertGreater(len(runs), 1)
