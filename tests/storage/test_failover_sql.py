"""Plain SQL on a promoted server."""

from __future__ import annotations

import psycopg2
from psycopg2 import errors

from synrepl.storage.incarnations import MARGIN
from tests.storage.postgres import PostgresCase

APPEND = "SELECT synrepl.append('notes', '[{\"text\": \"a\"}]')"

#: Makes the running server differ from the confirmed one.
PROMOTE = "UPDATE synrepl._incarnations SET timeline = 'AAAAAAAA'"
RESTORE = "UPDATE synrepl._incarnations SET system_identifier = '1', server_started_at = 'epoch'"


class PlainSql(PostgresCase):
    """Plain SQL is refused until the server is confirmed."""

    def refused(self, on: psycopg2.extensions.connection | None = None) -> psycopg2.Error:
        error: psycopg2.Error = self.assertRaises(psycopg2.Error, self.sql, APPEND, on=on)
        self.assertEqual(error.pgcode, "SY009")
        return error

    async def test_an_append_is_refused_until_the_server_is_confirmed(self) -> None:
        before = self.sql(APPEND)
        for change in (PROMOTE, RESTORE):
            self.sql(change)
            error = self.refused()
            self.assertIn("is not confirmed", error.diag.message_primary or "")
            self.assertIn("synrepl schema confirm", error.diag.message_hint or "")
            self.sql("SELECT synrepl.confirm()")
            after = self.sql(APPEND)
            self.assertGreater(after, before + MARGIN)
            before = after

    async def test_a_transaction_with_an_old_snapshot_is_refused(self) -> None:
        self.sql(PROMOTE)
        old = self.connect()
        old.set_session(isolation_level="REPEATABLE READ", autocommit=False)
        self.sql("SELECT 1", on=old)
        self.sql("SELECT synrepl.confirm()")
        self.refused(old)
        old.rollback()
        self.sql(APPEND, on=old)

    async def test_a_restart_of_the_server_needs_no_confirmation(self) -> None:
        self.sql("UPDATE synrepl._incarnations SET server_started_at = 'epoch'")
        before = self.sql(APPEND)
        self.assertEqual(self.sql("SELECT synrepl.confirm()"), 1)
        self.assertEqual(self.sql(APPEND), before + 1)
        self.assertTrue(
            self.sql(
                "SELECT server_started_at = pg_postmaster_start_time() FROM synrepl._incarnations"
            )
        )

    async def test_a_confirmation_waits_for_prepared_transactions_of_the_old_server(self) -> None:
        number = self.sql("SELECT number FROM synrepl._writers WHERE stream = 'notes'")
        holding = self.connect()
        holding.autocommit = False
        self.sql(
            "SELECT pg_advisory_xact_lock_shared(synrepl.lock_class(%s), 1)", number, on=holding
        )
        self.sql(PROMOTE)
        impatient = self.connect()
        self.sql("SET lock_timeout = '50ms'", on=impatient)
        confirm = "SELECT synrepl.confirm()"
        self.assertRaises(errors.LockNotAvailable, self.sql, confirm, on=impatient)
        holding.rollback()
        self.assertEqual(self.sql(confirm, on=impatient), 2)

    async def test_an_append_waits_for_the_disk(self) -> None:
        hasty = self.connect()
        hasty.autocommit = False
        self.sql("SET synchronous_commit = off", on=hasty)
        self.sql(APPEND, on=hasty)
        self.assertEqual(self.sql("SHOW synchronous_commit", on=hasty), "on")
        hasty.commit()
        self.assertEqual(self.sql("SHOW synchronous_commit", on=hasty), "off")
