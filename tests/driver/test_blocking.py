"""The blocking database, with servers that stop and restart."""

from __future__ import annotations

import signal
from typing import Any

from psycopg2 import extensions
from twisted.trial.unittest import SynchronousTestCase

from synrepl.driver import blocking
from synrepl.driver.blocking import BlockingDatabase
from synrepl.driver.connection import DatabaseRefused
from synrepl.storage.database import Transaction
from synrepl.storage.launch.postgres import PostgresServer
from synrepl.storage.store import DatabaseAway
from tests.driver.embedded_server import existing_data_dir, query_one

#: The first commit to which it belongs loses its connection, undone.
_CUT_AT_COMMIT = """
    DROP TABLE IF EXISTS done; DROP SEQUENCE IF EXISTS commits;
    CREATE TABLE done (n int); CREATE SEQUENCE commits;
    CREATE OR REPLACE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF nextval('commits') = 1 THEN
            PERFORM pg_terminate_backend(pg_backend_pid());
        END IF;
        RETURN NULL;
    END $$;
    CREATE CONSTRAINT TRIGGER cut AFTER INSERT ON done DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION cut()
"""


class _Clock:
    """Replaces ``time``; it stands still unless a test advances it."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def number(txn: Transaction) -> int:
    return int(txn.execute("SELECT 1").fetchone()[0])


class BlockingDatabaseTests(SynchronousTestCase):
    """One server, ended and started again."""

    def setUp(self) -> None:
        self.server = PostgresServer(existing_data_dir(), fsync=False)
        self.server.start()
        self.addCleanup(self.server.stop)

    def database(self, patience_s: float = 60.0, **parts: object) -> BlockingDatabase:
        given = {**extensions.parse_dsn(self.server.dsn), **parts}
        database = BlockingDatabase(extensions.make_dsn(**given), "tests", patience_s)
        self.addCleanup(database.close)
        return database

    def kill(self) -> None:
        assert self.server.child is not None
        self.server.child.end([(signal.SIGKILL, 30.0)])

    def test_a_server_that_is_started_again_between_two_works(self) -> None:
        database = self.database()
        self.assertEqual(database.run("number", number), 1)
        self.kill()
        self.server.restart()
        self.assertEqual(database.run("number", number), 1)

    def test_a_server_that_dies_in_the_middle_of_the_work(self) -> None:
        runs = []

        def work(txn: Transaction) -> int:
            runs.append(number(txn))
            if len(runs) == 1:
                self.kill()
                self.server.restart()
            return number(txn)

        self.assertEqual(self.database().run("work", work), 1)
        self.assertEqual(len(runs), 2)

    def test_long_work_does_not_count_towards_the_time_limit(self) -> None:
        clock = _Clock()
        self.patch(blocking, "time", clock)
        runs = []

        def work(txn: Transaction) -> int:
            runs.append(number(txn))
            if len(runs) == 1:
                clock.now += 1_000.0  # as long as that took
                self.kill()
                self.server.restart()
            return number(txn)

        self.assertEqual(self.database(60.0).run("work", work), 1)
        self.assertEqual(len(runs), 2)

    def test_gives_up_after_the_time_limit(self) -> None:
        self.kill()
        error = self.assertRaises(DatabaseAway, self.database(0.0).run, "number", number)
        self.assertNotIsInstance(error, DatabaseRefused)
        self.assertNotIn(extensions.parse_dsn(self.server.dsn)["password"], str(error))

    def test_a_refusal_is_raised_at_once(self) -> None:
        for parts in ({"password": "hunter2"}, {"dbname": "nowhere"}, {"user": "nobody"}):
            error: Any = self.assertRaises(
                DatabaseRefused, self.database(10_000.0, **parts).run, "number", number
            )
            self.assertNotIn("hunter2", str(error))

    def test_a_commit_whose_answer_is_lost_runs_again(self) -> None:
        query_one(self.server.dsn, _CUT_AT_COMMIT)
        found = []

        def work(txn: Transaction) -> None:
            found.append(txn.execute("SELECT count(*) FROM done").fetchone()[0])
            if not found[-1]:
                txn.execute("INSERT INTO done VALUES (1)")

        self.database().run("work", work)
        self.assertEqual(found, [0, 0])
        self.assertEqual(query_one(self.server.dsn, "SELECT count(*) FROM done"), 1)

    def test_an_error_of_the_work_leaves_nothing_and_the_connection_serves_on(self) -> None:
        database = self.database()
        database.run("make", lambda txn: txn.execute("CREATE TABLE IF NOT EXISTS kept (n int)"))

        def work(txn: Transaction) -> None:
            txn.execute("INSERT INTO kept VALUES (1)")
            raise KeyError("of the work")

        self.assertRaises(KeyError, database.run, "work", work)
        count = database.run(
            "count", lambda txn: txn.execute("SELECT count(*) FROM kept").fetchone()
        )
        self.assertEqual(count[0], 0)
