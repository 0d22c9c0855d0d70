"""Secrets: read from files that only their owner can read, and never shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from synrepl.core.private_files import BadSecretFile as BadSecretFile
from synrepl.core.private_files import read_private

#: Members of a key=value DSN that may be shown.
_HARMLESS = ("host=", "hostaddr=", "port=", "dbname=", "user=")


@dataclass(frozen=True, slots=True)
class Secret:
    """A value that must not reach a log, a page or a terminal.

    :ivar shown: what is printed in its place: the file it came from, or a masked form
    :ivar readers: who can read the file it came from, and should not; None for nobody
    """

    shown: str
    _value: str = field(repr=False)
    readers: str | None = field(default=None, compare=False)

    def reveal(self) -> str:
        """The value itself."""
        return self._value

    def __str__(self) -> str:
        return self.shown


def read_secret(path: Path) -> Secret:
    """Read a secret file once; white space around the secret is dropped.

    :raises BadSecretFile: see :func:`synrepl.core.private_files.read_private`
    """
    return Secret(shown=str(path), _value=read_private(path))


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
