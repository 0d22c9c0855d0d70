"""Secrets: read from files that only their owner can read, and never shown."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from synrepl.core.errors import ConfigError

MAX_SECRET_BYTES = 4096

#: Members of a key=value DSN that may be shown.
_HARMLESS = ("host=", "hostaddr=", "port=", "dbname=", "user=")


class BadSecretFile(ConfigError):
    """the secret file {path} {problem}"""


@dataclass(frozen=True, slots=True)
class Secret:
    """A value that must not reach a log, a page or a terminal.

    :ivar shown: what is printed in its place: the file it came from, or a masked form
    """

    shown: str
    _value: str = field(repr=False)

    def reveal(self) -> str:
        """The value itself."""
        return self._value

    def __str__(self) -> str:
        return self.shown


def read_secret(path: Path) -> Secret:
    """Read a secret file once; white space around the secret is dropped.

    :raises BadSecretFile: when it cannot be read, is empty, longer than 4 KiB, not
        UTF-8, or readable by every user of the machine
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise BadSecretFile(path=path, problem=f"cannot be read: {error.strerror}") from None
    if mode & stat.S_IROTH:
        raise BadSecretFile(
            path=path,
            problem=f"is readable by everybody (mode {mode:04o}); chmod it to 0600 or 0640",
        )
    if len(data) > MAX_SECRET_BYTES:
        raise BadSecretFile(path=path, problem=f"is longer than {MAX_SECRET_BYTES} bytes")
    try:
        value = data.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise BadSecretFile(path=path, problem="is not UTF-8 text") from None
    if not value:
        raise BadSecretFile(path=path, problem="is empty")
    return Secret(shown=str(path), _value=value)


def dsn_secret(dsn: str) -> Secret:
    """A Postgres DSN (URI or ``key=value``) as a secret that shows everything but the password.

    :raises ValueError: when it is neither form
    """
    scheme, is_uri, rest = dsn.partition("://")
    if is_uri and scheme in ("postgresql", "postgres"):
        return Secret(f"{scheme}://{_without_password(rest)}", dsn)
    if "=" in dsn and not is_uri:
        # Values may be quoted and hold spaces; only the harmless keys' plain ones are shown.
        words = [word for word in dsn.split() if word.startswith(_HARMLESS)]
        return Secret(" ".join([*words, "***"]), dsn)
    raise ValueError("neither a postgresql:// URI nor key=value pairs")


def _without_password(rest: str) -> str:
    # A query may hold a password too (libpq takes ?password=…), so none is shown.
    before, question, query = rest.partition("?")
    userinfo, at, host = before.rpartition("@")
    if "/" in userinfo or ("@" in query and not at):
        return "***"  # a password that was not percent-encoded
    user, colon, _ = userinfo.partition(":")
    return user + (":***" if colon else "") + at + host + ("?***" if question else "")
