"""Where the servers of tests keep their files."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from tempfile import mkdtemp

#: A file system in memory.
MEMORY = Path("/dev/shm")  # noqa: S108

#: Free bytes that it needs to have; a server of tests takes at most a tenth.
ENOUGH = 4 << 30

_PREFIX = "synrepl-test-"


def server_directory(memory: Path = MEMORY, enough: int = ENOUGH) -> Path:
    """A new directory for the data of a PostgreSQL; the caller removes it.

    It is in memory where there is room, because making and dropping databases means thousands of
    small files. Otherwise, or with ``TMPDIR`` in the environment, it is where temporary files are.
    What killed test processes left behind in memory is removed.

    :param memory: the mount point of a file system in memory
    :param enough: free bytes that it needs to have
    """
    if "TMPDIR" in os.environ or not _has_room(memory, enough):
        return Path(mkdtemp(prefix=_PREFIX))
    for directory in memory.glob(f"{_PREFIX}*"):
        if _is_left_over(directory):
            shutil.rmtree(directory, ignore_errors=True)
    return Path(mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=memory))


def _has_room(directory: Path, enough: int) -> bool:
    try:
        found = os.statvfs(directory)
    except OSError:
        return False
    # The programs of PostgreSQL may have to be copied there for the account that runs them.
    runs_programs = not found.f_flag & os.ST_NOEXEC
    return (
        runs_programs
        and os.access(directory, os.W_OK)
        and found.f_bavail * found.f_frsize >= enough
    )


def _is_left_over(directory: Path) -> bool:
    """Whether the process that made it has ended, and nobody runs a server there any more."""
    owner = directory.name.removeprefix(_PREFIX).partition("-")[0]
    if not owner.isdecimal() or _is_running(int(owner)):
        return False
    return all(
        map(_is_free, (*directory.glob("postgres.lock"), *directory.glob("*/postgres.lock")))
    )


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def _is_free(path: Path) -> bool:
    try:
        with path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
