"""``synrepl lake`` where Spark is another process's, or another machine's: the same commands, another ``--master``."""

from __future__ import annotations

import json
import os
import signal
import sys
import venv
from contextlib import AbstractContextManager
from pathlib import Path

from synrepl.pipeline.lake.spark_tasks import WorkerLacks
from system_tests.cli.lake_case import LakeCase
from system_tests.cli.test_lake_follow import ON_SPARK, jvms_of
from system_tests.pipeline.spark_fixture import EXECUTORS, REPOSITORY, run_child
from system_tests.pipeline.spark_servers import connect_server, standalone_cluster
from tests.storage.postgres import PREPARED

#: Runs commands one after the other and prints what each has printed. The session that the first
#: one opens is the session of all: on a cluster each would start a driver and an executor.
COMMANDS_IN_ONE_SESSION = """
    import json, sys
    from contextlib import ExitStack, nullcontext
    from click.testing import CliRunner
    from synrepl.cli import cli
    from synrepl.pipeline.session import session

    opened, real, printed = [], session.open_session, []

    with ExitStack() as stack:
        def open_session(options):
            if not opened:
                opened.append(stack.enter_context(real(options)))
            return nullcontext(opened[0])

        session.open_session = open_session
        for command in json.loads(sys.argv[1]):
            ran = CliRunner().invoke(cli, command, catch_exceptions=False)
            assert (ran.exit_code, ran.stderr) == (0, ""), (command, ran.output)
            printed.append(ran.stdout)
    print(json.dumps(printed))
"""


class LakeOnRemoteSpark(LakeCase):
    """The lake commands on a Spark cluster and over Spark Connect."""

    async def setUp(self) -> None:  # type: ignore[override]
        super().setUp()
        self.dsn = await PREPARED.copy(self)
        self.database = ("--database-path", self.dsn_file(self.dsn))
        self.append_notes(self.dsn, "one", "two", "three")

    def commands(self, master: str, *more: object) -> list[list[str]]:
        """What :meth:`check_outputs` is about."""
        where = ("--master", master, "--scratch", self.directory, *more, "--json")
        commands: list[tuple[object, ...]] = [
            ("land", self.lake, *self.database, *where, *ON_SPARK),
            ("check", self.lake, *self.database, *where),
            ("run", "activity", self.lake, *where),
        ]
        return [["lake", *map(str, command)] for command in commands]

    def check_outputs(self, landed: str, checked: str, ran: str) -> None:
        """Everything was landed, found equal, and is what the job has read."""
        self.assertEqual(json.loads(landed)["rows"], {"notes": 3})
        self.assertTrue(json.loads(checked)["equal"])
        self.assertEqual([row["rows"] for row in json.loads(ran)], [3])

    async def succeeded(self, *arguments: object) -> str:
        done = await self.run_command(*arguments)
        self.assertEqual(done.code, 0, done)
        return done.out

    def entered(self, server: AbstractContextManager[str]) -> str:
        """A server's address; it ends with the test."""
        address = server.__enter__()
        self.addCleanup(server.__exit__, None, None, None)
        return address

    async def test_commands_work_on_a_standalone_cluster(self) -> None:
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
        done = await self.run_command("lake", "land", self.lake, *where, *ON_SPARK)
        self.assertEqual((done.code, done.out), (1, ""), done)
        self.assertEqual(done.err, f"synrepl: error: {WorkerLacks(module='pyarrow')}\n")
        os.environ["PYSPARK_PYTHON"] = sys.executable
        ended = run_child(
            COMMANDS_IN_ONE_SESSION,
            json.dumps(self.commands(master, *here)),
            PYTHONPATH=str(REPOSITORY),
        )
        self.assertEqual((ended.status, ended.errors), (0, ""))
        self.check_outputs(*json.loads(ended.output))

    async def test_commands_work_over_spark_connect(self) -> None:
        address = self.entered(connect_server(Path(self.mktemp()).absolute()))
        commands = self.commands(f"sc://{address}")
        self.check_outputs(*[await self.succeeded(*command) for command in commands])

    async def test_following_survives_the_death_of_an_executor(self) -> None:
        settings = {"spark.executor.memory": "512m", **EXECUTORS}
        conf = (part for pair in settings.items() for part in ("--conf", "=".join(pair)))
        command = self.start(
            "lake", "land", self.lake, *self.database, "--follow", "--every", "0.1", "--json",
            "--master", "local-cluster[1,1,1024]", "--driver-memory", "512m",
            "--scratch", self.directory, *ON_SPARK, *conf,
        )  # fmt: skip
        await command.lines(1)
        executors = [pid for pid in jvms_of(command) if is_executor(pid)]
        self.assertEqual(len(executors), 1)
        os.kill(executors[0], signal.SIGKILL)
        self.append_notes(self.dsn, "four")
        reports = [json.loads(line)["rows"] for line in await command.lines(2)]
        self.assertEqual(reports, [{"notes": 3}, {"notes": 1}])
        command.signal("TERM")
        await command.done()


def is_executor(pid: int) -> bool:
    """True for the JVM of an executor."""
    return b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()
