"""Scripts whose statements a connection plans once."""

from __future__ import annotations

from synrepl.storage.database import PlannedOnce, Script, Transaction, UniqueViolation
from tests.storage.postgres import PostgresCase

_ADD = PlannedOnce("INSERT INTO planned (number, name) VALUES (%s, %s)")
_SUM = PlannedOnce("SELECT sum(number), min(name) FROM planned WHERE number < %s")
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

    async def test_a_script_that_failed_halfway_can_be_run_again(self) -> None:
        def add_twice(txn: Transaction) -> None:
            txn.execute(Script([_ADD, _ADD, _SUM]), (1, "one", 1, "again", 9))

        for _ in range(2):
            with self.assertRaises(UniqueViolation):
                await self.database.run("a test", add_twice)

        def add(txn: Transaction) -> object:
            return txn.execute(Script([_ADD, _SUM]), (1, "one", 9)).fetchone()

        self.assertEqual(await self.database.run("a test", add), (1, "one"))
