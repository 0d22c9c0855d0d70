"""Errors of data folders, with instructions."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL

from synrepl.core.errors import ConfigError, StorageError
from synrepl.storage.launch.child import Account, guarded, own_account
from synrepl.storage.launch.guard import CANNOT_ENTER

_TIME_LIMIT_S = 60

#: No space, no quota, no larger file.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class DataDirUnusable(ConfigError):
    """the data folder {directory} cannot be used: {path}: {reason}; name another folder as data_dir, or let user {user} read and write this one"""


class DataDirFull(StorageError):
    """there is no room for the data folder {directory}: {path}: {reason}; free some and start again"""


def can_enter(account: Account, directory: Path) -> bool:
    """Whether a server that runs as ``account`` can use a directory.

    :param directory: if it does not exist, its nearest existing ancestor is checked
    """
    there = next(path for path in (directory, *directory.parents) if path.is_dir())
    command = guarded(account, Path("/bin/true"), [], there, SIGKILL)
    done = subprocess.run(command, capture_output=True, check=False, timeout=_TIME_LIMIT_S)  # noqa: S603
    return done.returncode != CANNOT_ENTER


@contextmanager
def named_errors(directory: Path) -> Iterator[None]:
    """Translate an ``OSError`` in a data folder into an error that names the folder.

    :raises DataDirFull: the disk or quota is full
    :raises DataDirUnusable: it is read-only, not a folder, or belongs to another user
    """
    try:
        yield
    except OSError as error:
        path = error.filename2 or error.filename or directory
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            raise DataDirFull(directory=directory, path=path, reason=reason) from error
        user = own_account().name
        raise DataDirUnusable(directory=directory, path=path, reason=reason, user=user) from error
