"""Which database a command line means, and no password in it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from synrepl.cli.dsn import check_transport, given_dsn, shown_dsn
from synrepl.core.errors import ConfigError


class TwoDatabases(ConfigError):
    """--database and --database-path both name a database: give one of them"""


class PasswordOnCommandLine(ConfigError):
    """the DSN of --database holds a password (or may hold one), which every user of this machine sees in the list of processes: put it into a file for --database-path, or into SYNREPL_DATABASE; change the password, for it has been shown"""


def given_database(dsn: str | None, path: Path | None, insecure: bool = False) -> str | None:
    """The DSN on the command line, in a file, or in the environment; None when there is none.

    :param insecure: plain text to a database on another machine is accepted
    :raises TwoDatabases: :raises PasswordOnCommandLine:
    :raises BadSecretFile: the file cannot be read, or others can read it
    :raises UnreadableDsn: it is no DSN
    :raises PlainTextDatabase: see :func:`.refuse_plain_text`
    """
    if dsn is None:
        return given_dsn(path, insecure)
    if path is not None:
        raise TwoDatabases()
    if _may_hold_password(dsn, "--database"):
        raise PasswordOnCommandLine()
    check_transport(dsn, insecure)
    return dsn


def _may_hold_password(dsn: str, source: str) -> bool:
    before, _, query = dsn.partition("?") if "://" in dsn else ("", "", dsn)
    masked = "***" in shown_dsn(before, source) if before else not shown_dsn(dsn, source)
    return masked or "password" in unquote(query).lower()
