"""Directories of servers of tests: in memory where there is room; leftovers go."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
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

    def left(self, owner: object, name: str, lock: str = "postgres.lock") -> Path:
        """A directory in memory that a process made, and started a server in."""
        path = self.memory / f"synrepl-test-{owner}-{name}" / lock
        path.parent.mkdir(parents=True)
        path.touch()
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
        ended = ended_process()
        self.left(ended, "one")
        self.left(ended, "two", "data/postgres.lock")
        self.left(ended, "three").unlink()
        self.assertEqual(self.made(), self.memory)
        self.assertEqual(len(list(self.memory.iterdir())), 1)

    def test_what_is_used_or_of_others_stays(self) -> None:
        with self.left(ended_process(), "server").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Of a running process, whose server may be stopped: it may be started again.
            self.left(os.getpid(), "stopped")
            self.left("x", "unknown")
            (self.memory / "others").mkdir()
            before = set(self.memory.iterdir())
            self.made()
            self.assertLessEqual(before, set(self.memory.iterdir()))


def ended_process() -> int:
    """The ID of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid
