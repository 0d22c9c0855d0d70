"""Secrets, which are read from files that only their owner can read, and never displayed."""

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

    :ivar shown: displayed instead: the file that it came from, or a masked form
    :ivar readers: users who can read that file and should not; None if there are none
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
    """Read a secret from a file; surrounding white space is stripped.

    :raises BadSecretFile: see :func:`synrepl.core.private_files.read_private`
    """
    return Secret(shown=str(path), _value=read_private(path))


def dsn_secret(dsn: str) -> Secret:
    """Make a secret of a Postgres DSN (URI or ``key=value``) that displays all but the password.

    :raises ValueError: it has neither form
    """
    scheme, is_uri, rest = dsn.partition("://")
    if is_uri and scheme in ("postgresql", "postgres"):
        return Secret(f"{scheme}://{_without_password(rest)}", dsn)
    if "=" in dsn and not is_uri:
        # Values may be quoted and contain spaces; only plain values of harmless keys are shown.
        words = [word for word in dsn.split() if word.startswith(_HARMLESS)]
        return Secret(" ".join([*words, "***"]), dsn)
    raise ValueError("neither a postgresql:// URI nor key=value pairs")


def _without_password(rest: str) -> str:
    # A query may contain a password too (libpq accepts ?password=…), so it is not shown.
    before, question, query = rest.partition("?")
    userinfo, at, host = before.rpartition("@")
    if "/" in userinfo or ("@" in query and not at):
        return "***"  # a password that was not percent-encoded
    user, colon, _ = userinfo.partition(":")
    return user + (":***" if colon else "") + at + host + ("?***" if question else "")
