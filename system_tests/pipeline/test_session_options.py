"""Refusals before Spark is started: options, missing packages and unreachable addresses."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from synrepl.pipeline.session.options import (
    BadMaster,
    BadMemory,
    NotASparkSetting,
    OwnSetting,
    SessionOptions,
)
from synrepl.pipeline.session.requirements import (
    ConnectMissing,
    MasterUnreachable,
    SparkMissing,
    require_connect,
    require_listening,
    require_spark,
)
from synrepl.pipeline.session.settings import settings
from system_tests.pipeline.spark_fixture import run_child


class SessionOptionsTest(SynchronousTestCase):
    """SessionOptions refuses invalid values when it is created."""

    def test_valid_masters_are_accepted(self) -> None:
        cores = len(os.sched_getaffinity(0))
        for master, expected in (
            ("local", 1),
            ("local[3]", 3),
            ("local[2,4]", 2),
            ("local[*]", cores),
            ("local-cluster[2,3,1024]", 6),
            ("spark://one:7077,two:7077", None),
            ("spark://[::1]:7077", None),
            ("sc://there:15002/;user_id=us", None),
        ):
            self.assertEqual(SessionOptions(master=master).cores, expected, master)

    def test_bad_masters_are_refused(self) -> None:
        for master in ("", "local[0]", "local[2", "yarn", "spark://host", "sc://", "local-cluster"):
            with self.assertRaises(BadMaster, msg=master):
                SessionOptions(master=master)

    def test_the_token_of_a_bad_master_is_not_shown(self) -> None:
        error = self.assertRaises(BadMaster, SessionOptions, master="sx://there/;token=hush")
        self.assertNotIn("hush", str(error))
        self.assertIn("sx://there", str(error))

    def test_bad_amounts_of_memory_are_refused(self) -> None:
        for memory in ("", "512", "0m", "1.5g", "2gb"):
            with self.assertRaises(BadMemory, msg=memory):
                SessionOptions(driver_memory=memory)

    def test_bad_settings_are_refused(self) -> None:
        error = self.assertRaises(NotASparkSetting, SessionOptions, conf={"sprak.x": "1"})
        self.assertIn("'sprak.x'", str(error))
        for key in ("spark.master", "spark.app.name", "spark.driver.memory", "spark.local.dir"):
            error = self.assertRaises(OwnSetting, SessionOptions, conf={key: "1"})
            self.assertIn(key, str(error))


class SparkSettings(SynchronousTestCase):
    """The settings that synrepl adds."""

    SOCKETS = "spark.python.unix.domain.socket.dir"

    def test_unix_sockets_are_used_if_paths_are_short(self) -> None:
        short, long = Path("/scratch/synrepl-spark-12345678"), Path("/scratch") / ("x" * 60)
        for master in ("local[2]", "local-cluster[2,1,1024]"):
            options = SessionOptions(master)
            self.assertEqual(settings(options, short)[self.SOCKETS], str(short / "tmp"))
            self.assertNotIn(self.SOCKETS, settings(options, long))
        # Executors on other machines do not have this path.
        self.assertNotIn(self.SOCKETS, settings(SessionOptions("spark://there:7077"), short))

    def test_local_ports_have_a_secret(self) -> None:
        options = SessionOptions("local[2]")
        one, two = (settings(options, Path("/scratch/x")) for _ in range(2))
        self.assertEqual(one["spark.authenticate"], "true")
        self.assertNotEqual(one["spark.authenticate.secret"], two["spark.authenticate.secret"])
        given = SessionOptions("local[2]", conf={"spark.authenticate": "false"})
        self.assertEqual(settings(given, Path("/scratch/x"))["spark.authenticate"], "false")


class Requirements(SynchronousTestCase):
    """Missing packages are named, with the command that installs them."""

    def test_missing_spark_packages_are_named(self) -> None:
        require_spark()
        with patch.dict(sys.modules, {"pyspark": None, "deltalake": None}):
            error = self.assertRaises(SparkMissing, require_spark)
        self.assertIn("(pyspark, deltalake cannot be found)", str(error))
        self.assertIn("pip install 'synrepl[spark]'", str(error))

    def test_missing_connect_packages_are_named(self) -> None:
        require_connect()
        with patch.dict(sys.modules, {"grpc": None}):
            require_spark()
            error = self.assertRaises(ConnectMissing, require_connect)
        self.assertIn("(grpc cannot be found)", str(error))
        self.assertIn("pip install 'synrepl[connect]'", str(error))

    def test_commands_work_without_spark(self) -> None:
        # Importing a module that is None in sys.modules fails; no command may try to.
        script = """
            import sys
            sys.modules.update(dict.fromkeys(["pyspark", "pyarrow", "pandas", "deltalake"]))
            from synrepl.cli import main
            sys.argv = ["synrepl", "lake", *sys.argv[1:]]
            main()
        """
        ended = run_child(script, "land", "/nowhere")
        self.assertEqual(ended.status, 2, ended.errors)
        self.assertEqual(ended.output, "")
        self.assertEqual(len(ended.errors.splitlines()), 1, ended.errors)
        self.assertIn("pyspark, pyarrow, pandas, deltalake cannot be found", ended.errors)
        self.assertIn("pip install 'synrepl[spark]'", ended.errors)
        ended = run_child(script, "--help")
        self.assertEqual(ended.status, 0, ended.errors)
        self.assertIn("land", ended.output)


class ListeningMasters(SynchronousTestCase):
    """An address where nothing listens is refused at once; Spark would try for minutes."""

    def setUp(self) -> None:
        # The port is bound, so that no other process gets it, but nothing listens.
        bound = socket.socket()
        self.addCleanup(bound.close)
        bound.bind(("127.0.0.1", 0))
        self.nobody: int = bound.getsockname()[1]

    def test_local_masters_are_not_connected_to(self) -> None:
        require_listening("local[2]")
        require_listening("local-cluster[2,1,1024]")

    def test_a_master_that_does_not_listen_is_refused(self) -> None:
        for master in (
            f"spark://127.0.0.1:{self.nobody}",
            f"sc://127.0.0.1:{self.nobody}/;token=hush",
        ):
            error = self.assertRaises(MasterUnreachable, require_listening, master)
            self.assertIn(f"127.0.0.1:{self.nobody}", str(error))
            self.assertIn("Connection refused", str(error))
            self.assertNotIn("hush", str(error))

    def test_an_invalid_port_is_refused(self) -> None:
        self.assertRaises(MasterUnreachable, require_listening, "spark://127.0.0.1:99999")

    def test_one_listening_master_of_a_group_is_enough(self) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as listening:
            port = listening.getsockname()[1]
            require_listening(f"spark://127.0.0.1:{self.nobody},127.0.0.1:{port}")
