"""A snapshot that is held open."""

from __future__ import annotations

from psycopg2.extensions import make_dsn

from synrepl.driver.held_snapshot import held_snapshot
from tests.storage.postgres import PostgresCase


class HeldSnapshots(PostgresCase):
    """How long a snapshot is held."""

    def test_no_time_limit_of_the_server_ends_it(self) -> None:
        limits = [
            "idle_in_transaction_session_timeout", "statement_timeout", "transaction_timeout",
        ]  # fmt: skip
        dsn = make_dsn(self.dsn, options=" ".join(f"-c {name}=1h" for name in limits))
        with held_snapshot(dsn, "tests") as snapshot:
            shown = [snapshot.txn.execute(f"SHOW {name}").fetchone()[0] for name in limits]
            self.assertEqual(shown, ["0"] * 3)
