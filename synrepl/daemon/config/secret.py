"""Secrets, which are read from files that only their owner can read, and never displayed.

Also finds what a DSN would expose: its password in a file, plain text to another machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from synrepl.core.errors import ConfigError
from synrepl.core.private_files import BadSecretFile as BadSecretFile
from synrepl.core.private_files import read_private
from synrepl.daemon.config.decode import Unfit
from synrepl.driver.dsn import refuse_plain_text

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


def exposed_database(key: str, dsn: Secret | None, insecure: str) -> Iterator[Unfit]:
    """Check whether a DSN exposes data or its password, unless the operator accepts it.

    :param key: the setting that holds the DSN
    :param insecure: the setting that accepts the exposure
    """
    if dsn is None:
        return
    try:
        refuse_plain_text(dsn.reveal(), f"'{insecure}: true'")
    except ConfigError as error:
        yield Unfit(key=key, reason=error)
    if dsn.readers is not None:
        yield Unfit(
            key=key,
            reason=f"there is a password in it, and this file can be read by {dsn.readers}: chmod "
            "it to 0600 (0640 will do for a file that belongs to root), put the DSN in a file of "
            f"its own and name that in 'database_path', or accept it by '{insecure}: true'",
        )
