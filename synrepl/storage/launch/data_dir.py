"""What may be wrong with a data folder, as errors that say what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from synrepl.core.errors import ConfigError, StorageError
from synrepl.storage.launch.child import own_account

#: No space, no quota, no larger file.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class DataDirUnusable(ConfigError):
    """the data folder {directory} cannot be used: {path}: {reason}; name another folder as data_dir, or let user {user} read and write this one"""


class DataDirFull(StorageError):
    """there is no room for the data folder {directory}: {path}: {reason}; free some and start again"""


@contextmanager
def named_errors(directory: Path) -> Iterator[None]:
    """Raise an ``OSError`` of work in a data folder as an error that names the folder.

    :raises DataDirFull: there is no room left
    :raises DataDirUnusable: it is read-only, no folder, or somebody else's
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
