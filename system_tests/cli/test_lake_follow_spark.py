"""``synrepl lake land --follow`` survives Spark: its workers and its JVM are killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from synrepl.pipeline.lake.lake import Lake
from system_tests.cli.lake_case import LakeCase
from system_tests.cli.test_lake_follow import ON_SPARK, jvms_of, running
from system_tests.pipeline.landing_case import rows_of
from tests.cli.cli_case import Command
from tests.storage.postgres import PREPARED


class FollowWithoutSpark(LakeCase):
    """Processes of Spark die while landing follows."""

    async def setUp(self) -> None:  # type: ignore[override]
        super().setUp()
        self.dsn = await PREPARED.copy(self)
        self.scratch = self.directory / "scratch"
        self.scratch.mkdir()

    def follow(self) -> Command:
        return self.start(
            "lake", "land", self.lake, "--database-path", self.dsn_file(self.dsn), "--follow",
            "--every", "0.1", "--master", "local[1]", "--driver-memory", "512m",
            "--scratch", self.scratch, *ON_SPARK, "--json",
        )  # fmt: skip

    def texts(self) -> list[object]:
        return [row[3] for row in rows_of(Lake(self.lake).table("notes"))]

    async def test_a_killed_jvm_is_started_again(self) -> None:
        self.append_notes(self.dsn, "one")
        command = self.follow()
        await command.lines(1)
        (jvm,) = jvms_of(command)
        os.kill(jvm, signal.SIGKILL)
        self.append_notes(self.dsn, "two")
        _, second = await command.lines(2)
        self.assertEqual(json.loads(second)["rows"], {"notes": 1})
        errors = await command.stderr_containing("it is started again")
        self.assertEqual(errors.count("\n"), 1, errors)
        self.assertNotIn("Traceback", errors)
        jvms = jvms_of(command)
        self.assertEqual(len({*jvms} - {jvm}), 1)
        command.signal("TERM")
        await command.done()
        self.assertEqual(running([*jvms, jvm]), [])
        self.assertEqual(list(self.scratch.iterdir()), [])
        self.assertEqual(self.texts(), ["one", "two"])

    async def test_a_killed_worker_is_replaced(self) -> None:
        self.append_notes(self.dsn, "one")
        command = self.follow()
        await command.lines(1)
        (jvm,) = jvms_of(command)
        killed = children_of(*children_of(jvm))
        self.assertGreater(len(killed), 0)
        for worker in killed:
            os.kill(worker, signal.SIGKILL)
        self.append_notes(self.dsn, "two")
        await command.lines(2)
        command.signal("TERM")
        await command.done()
        self.assertEqual(self.texts(), ["one", "two"])


def children_of(*parents: int) -> list[int]:
    """The processes that these have started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) in parents:
                found.append(int(entry.name))
    return found
