"""Database DSNs and HOST:PORT on a command line; passwords are refused there."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote

import click

from synrepl.core.errors import ConfigError
from synrepl.daemon.config.secret import dsn_secret, read_secret
from synrepl.driver.dsn import refuse_plain_text

#: Holds the DSN of a database, where no file does; no process list shows it.
ENVIRONMENT = "SYNREPL_DATABASE"


#: For commands that take a DSN.
insecure_option = click.option(
    "--insecure", is_flag=True, help="Accept plain text to a database on another machine."
)


class UnreadableDsn(ConfigError):
    """the DSN from {source} is neither a postgresql:// URI nor key=value pairs (it is not shown, for it may hold a password)"""


def host_and_port(where: str) -> tuple[str, int]:
    """The two halves of HOST:PORT; the host may be in brackets."""
    host, _, port = where.rpartition(":")
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536 and host):
        raise click.BadParameter(f"{where!r} is not HOST:PORT", param_hint="HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def dsn_from_file_or_environment(path: Path | None, insecure: bool = False) -> str | None:
    """The DSN in a file, or in the environment; None when there is neither.

    :param insecure: plain text to a database on another machine is accepted
    :raises BadSecretFile: the file cannot be read, or others can read it
    :raises UnreadableDsn: it is no DSN
    :raises PlainTextDatabase: see :func:`.refuse_plain_text`
    """
    if path is not None:
        found, source = read_secret(path).reveal(), str(path)
    else:
        found, source = os.environ.get(ENVIRONMENT, ""), ENVIRONMENT
        if not found:
            return None
    shown_dsn(found, source)
    check_transport(found, insecure)
    return found


def check_transport(dsn: str, insecure: bool) -> None:
    """See that a DSN sends nothing in plain text, unless that is accepted.

    :raises PlainTextDatabase: :raises BadDsn:
    """
    if not insecure:
        refuse_plain_text(dsn, "--insecure")


def shown_dsn(dsn: str, source: str) -> str:
    """A DSN without its password.

    :raises UnreadableDsn: it is no DSN
    """
    try:
        return dsn_secret(dsn).shown
    except ValueError:
        raise UnreadableDsn(source=source) from None


class TwoDatabases(ConfigError):
    """--database and --database-path both name a database: give one of them"""


class PasswordOnCommandLine(ConfigError):
    """the DSN of --database holds a password (or may hold one), which every user of this machine sees in the list of processes: put it into a file for --database-path, or into SYNREPL_DATABASE; change the password, for it has been shown"""


def dsn_from_options(dsn: str | None, path: Path | None, insecure: bool = False) -> str | None:
    """The DSN on the command line, in a file, or in the environment; None when there is none.

    :param insecure: plain text to a database on another machine is accepted
    :raises TwoDatabases: :raises PasswordOnCommandLine:
    :raises BadSecretFile: the file cannot be read, or others can read it
    :raises UnreadableDsn: it is no DSN
    :raises PlainTextDatabase: see :func:`.refuse_plain_text`
    """
    if dsn is None:
        return dsn_from_file_or_environment(path, insecure)
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
