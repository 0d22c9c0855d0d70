"""A worker process that follows a real Synapse of 1.43, and reads what it missed in its database."""

from __future__ import annotations

import json
from pathlib import Path

from synrepl.daemon.config.config import load_worker
from synrepl.daemon.config.decode import BadSetting
from system_tests.cli.test_watch import ScriptedServer, WatchCase
from tests.cli.cli_case import CliCase
from tests.storage.foreign_databases import foreign_database, sent


class ForeignWorker(WatchCase):
    async def test_missed_facts_are_read_from_the_servers_database(self) -> None:
        dsn = await foreign_database("1.43.0")
        secret = self.directory / "synapse.dsn"
        secret.touch(mode=0o600)
        secret.write_text(dsn)
        rows = self.directory / "rows"
        rows.touch()
        facts = sent("1.43.0")["backfill"]
        last = max(facts)
        port = self.serve(ScriptedServer("REPLICATE", f"POSITION backfill master {last} {last}"))
        path = self.directory / "worker.yaml"
        path.write_text(
            "server_name: example.com\ninstance_name: w1\nfollow: [backfill]\n"
            f"master: {{port: {port}, foreign: true, database_path: {secret}}}\n"
            "handlers: [{class: 'tests.daemon.recording_handlers:TokenRecorder',"
            f" config: {{path: {rows}, tokens: {len(facts)}}}}}]\n"
        )
        worker = self.start("worker", "-c", path)
        await worker.stderr_containing("all are there")
        printed = [json.loads(line) for line in rows.read_text().splitlines()]
        self.assertEqual(sorted(printed), sorted(facts))


class Refusals(CliCase):
    def refused(self, rest: str) -> str:
        path = Path(self.mktemp())
        path.write_text(f"server_name: example.com\ninstance_name: w1\n{rest}")
        return str(self.assertRaises(BadSetting, load_worker, [path]))

    def test_requires_the_database_of_a_real_synapse(self) -> None:
        message = self.refused("database: dbname=x\nmaster: {port: 1, foreign: true}\n")
        self.assertIn("'master.database_path': required to catch up with a real Synapse", message)

    def test_refuses_a_master_database_without_a_real_synapse(self) -> None:
        secret = Path(self.mktemp())
        secret.touch(mode=0o600)
        secret.write_text("dbname=x")
        message = self.refused(
            f"database: dbname=x\nmaster: {{port: 1, database_path: {secret.absolute()}}}\n"
        )
        self.assertIn("for a real Synapse only", message)
