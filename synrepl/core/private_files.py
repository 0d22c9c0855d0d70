"""Reads files that hold a secret, and checks that nobody else can read them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from synrepl.core.errors import ConfigError

MAX_SECRET_BYTES = 4096


class BadSecretFile(ConfigError):
    """the secret file {path} {problem}"""


def readers(mode: int, owner: int) -> str | None:
    """Describe who can read the file but should not, for messages; None if nobody can.

    The group may read a file that belongs to root, as PostgreSQL allows for keys. A
    service manager, a container engine or an administrator can thus pass a secret to a
    process that does not own the file.

    :param mode: ``st_mode``
    :param owner: ``st_uid``
    """
    bits = stat.S_IMODE(mode)
    if bits & stat.S_IROTH:
        return f"everybody (mode {bits:04o})"
    if bits & stat.S_IRGRP and owner != 0:
        return f"its group (mode {bits:04o})"
    return None


def read_private(path: Path, limit: int = MAX_SECRET_BYTES) -> str:
    """Read a secret file, and strip surrounding white space.

    :param limit: maximum length in bytes
    :raises BadSecretFile: it cannot be read, is empty, longer than the limit or not UTF-8,
        or others can read it, see :func:`readers`
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(limit + 1)
    except OSError as error:
        raise BadSecretFile(path=path, problem=f"cannot be read: {error.strerror}") from None
    others = readers(status.st_mode, status.st_uid)
    if others is not None:
        cure = "chmod it to 0600; 0640 will do for a file that belongs to root"
        raise BadSecretFile(path=path, problem=f"can be read by {others}; {cure}")
    if len(data) > limit:
        raise BadSecretFile(path=path, problem=f"is longer than {limit} bytes")
    try:
        text = data.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise BadSecretFile(path=path, problem="is not UTF-8 text") from None
    if not text:
        raise BadSecretFile(path=path, problem="is empty")
    return text
