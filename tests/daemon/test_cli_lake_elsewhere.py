"""``synrepl lake`` where Spark is another process's, or another machine's: the same commands, another ``--master``."""

from __future__ import annotations

import json
import os
import sys
import venv
from contextlib import AbstractContextManager
from pathlib import Path

from synrepl.pipeline.lake.tasks import WorkerLacks
from synrepl.testing.postgres import fresh_database
from tests.daemon.lake_world import LakeCase
from tests.pipeline.spark import EXECUTORS
from tests.pipeline.spark_daemons import connect_server, standalone_cluster
from tests.storage.postgres import prepare


class Elsewhere(LakeCase):
    """Landed, checked and asked."""

    async def setUp(self) -> None:  # type: ignore[override]
        super().setUp()
        self.dsn = await fresh_database(self, prepare)
        self.database = ("--database-path", self.dsn_file(self.dsn))
        self.notes(self.dsn, "one", "two", "three")

    async def all_there(self, master: str, *more: object) -> None:
        where = ("--master", master, "--scratch", self.directory, *more)
        told = await self.succeeded("land", self.lake, *self.database, *where, "--json")
        self.assertEqual(json.loads(told)["rows"], {"notes": 3})
        told = await self.succeeded("check", self.lake, *self.database, *where, "--json")
        self.assertTrue(json.loads(told)["equal"])
        told = await self.succeeded("run", "activity", self.lake, *where, "--json")
        self.assertEqual([row["rows"] for row in json.loads(told)], [3])

    async def succeeded(self, *arguments: object) -> str:
        done = await self.run_it("lake", *arguments)
        self.assertEqual(done.code, 0, done)
        return done.out

    def entered(self, server: AbstractContextManager[str]) -> str:
        """A server's address; it ends with the test."""
        address = server.__enter__()
        self.addCleanup(server.__exit__, None, None, None)
        return address

    async def test_standalone_cluster(self) -> None:
        master = self.entered(standalone_cluster(Path(self.mktemp()).absolute()))
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "512m",
            **EXECUTORS,
        }
        conf = (part for pair in settings.items() for part in ("--conf", "=".join(pair)))
        here = ("--driver-memory", "512m", *conf)
        bare = self.directory / "bare"
        venv.create(bare)
        os.environ["PYSPARK_PYTHON"] = str(bare / "bin" / "python")
        where = (*self.database, "--master", master, *here)
        done = await self.run_it("lake", "land", self.lake, *where)
        self.assertEqual((done.code, done.out), (1, ""), done)
        self.assertEqual(done.err, f"synrepl: error: {WorkerLacks(module='pyarrow')}\n")
        os.environ["PYSPARK_PYTHON"] = sys.executable
        await self.all_there(master, *here)

    async def test_connect(self) -> None:
        address = self.entered(connect_server(Path(self.mktemp()).absolute()))
        await self.all_there(f"sc://{address}")
