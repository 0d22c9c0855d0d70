"""The directory that a session keeps its files in, private and gone at its end.

A process that is killed leaves its own behind. Whoever opens the next session in the same place
removes it: each is locked for as long as its process lives.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from synrepl.core.errors import ConfigError

_PREFIX = "synrepl-spark-"

#: While it has no lock yet. What is killed just then leaves an empty directory.
_NEW_PREFIX = "synrepl-new-spark-"

_LOCK = "owner.lock"


class NoScratch(ConfigError):
    """there can be no scratch directory for Spark in {where}: {reason}"""


@contextmanager
def scratch_directory(parent: Path | None) -> Iterator[Path]:
    """A new directory, removed at the end; and those of the dead are, too.

    :param parent: where it is made; by default the system's place for temporary files
    :raises NoScratch:
    """
    place = Path(gettempdir()) if parent is None else parent
    try:
        new = Path(mkdtemp(prefix=_NEW_PREFIX, dir=place)).resolve()
        lock = _lock(new)
        assert lock is not None
        scratch = new.rename(new.with_name(_PREFIX + new.name.removeprefix(_NEW_PREFIX)))
    except OSError as error:
        raise NoScratch(where=parent or "TMPDIR", reason=error.strerror or error) from None
    try:
        _remove_of_the_dead(place)
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(lock)


def _remove_of_the_dead(place: Path) -> None:
    for each in place.glob(f"{_PREFIX}*"):
        # Another user's, one that is being removed, or none of ours.
        with suppress(OSError):
            if each.stat().st_uid == os.getuid() and (each / _LOCK).is_file():
                lock = _lock(each)
                if lock is not None:
                    shutil.rmtree(each, ignore_errors=True)
                    os.close(lock)


def _lock(directory: Path) -> int | None:
    """Lock it for as long as this process has the file open; None when another process has."""
    file = os.open(directory / _LOCK, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    except BaseException:
        os.close(file)
        raise
    return file
