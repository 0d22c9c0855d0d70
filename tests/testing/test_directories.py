"""Directories of servers of tests: in memory where there is room; leftovers go."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from tempfile import gettempdir

from twisted.trial.unittest import SynchronousTestCase

from synrepl.testing.directories import server_directory


class ServerDirectories(SynchronousTestCase):
    """Where a directory is made, and what is removed for it."""

    def setUp(self) -> None:
        self.memory = Path(self.mktemp())
        self.memory.mkdir()
        environ = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
        self.patch(os, "environ", environ)

    def made(self, enough: int = 1) -> Path:
        """The parent of a new directory."""
        directory = server_directory(self.memory, enough)
        self.addCleanup(shutil.rmtree, directory)
        self.assertEqual(list(directory.iterdir()), [])
        return directory.parent

    def left(self, name: str, lock: str = "postgres.lock", age_s: float = 3600) -> Path:
        """A directory in memory in which a server was started."""
        path = self.memory / name / lock
        path.parent.mkdir(parents=True)
        path.touch()
        os.utime(path, (path.stat().st_mtime - age_s,) * 2)
        return path

    def test_is_in_memory_where_there_is_room(self) -> None:
        self.assertEqual(self.made(), self.memory)

    def test_is_a_temporary_file_where_memory_is_small_or_absent(self) -> None:
        self.assertEqual(self.made(enough=1 << 60), Path(gettempdir()))
        self.memory /= "absent"
        self.assertEqual(self.made(), Path(gettempdir()))

    def test_is_where_the_environment_says(self) -> None:
        os.environ["TMPDIR"] = gettempdir()
        self.assertEqual(self.made(), Path(gettempdir()))

    def test_what_killed_processes_left_is_removed(self) -> None:
        for path in "synrepl-test-one/postgres.lock", "synrepl-test-two/data/postgres.lock":
            self.left(*path.split("/", 1))
        self.assertEqual(self.made(), self.memory)
        self.assertEqual(len(list(self.memory.iterdir())), 1)

    def test_what_is_used_or_about_to_be_used_or_of_others_stays(self) -> None:
        with self.left("synrepl-test-used").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.left("synrepl-test-starting", age_s=5)
            self.left("others")
            self.left("synrepl-test-empty").unlink()
            self.made()
            kept = {"synrepl-test-used", "synrepl-test-starting", "others", "synrepl-test-empty"}
            self.assertLessEqual(kept, {path.name for path in self.memory.iterdir()})
