"""Database DSNs and HOST:PORT on a command line; passwords are refused there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import click

from synrepl.core.errors import ConfigError
from synrepl.daemon.config.secret import dsn_secret, read_secret
from synrepl.driver.dsn import refuse_plain_text

#: The environment variable that holds the DSN if no file does; process lists do not show it.
ENVIRONMENT = "SYNREPL_DATABASE"

F = TypeVar("F", bound=Callable[..., Any])


def dsn_options(command: F) -> F:
    """Options that name a database: ``dsn``, ``database_path`` and ``insecure``."""
    for option in (
        click.option(
            "--insecure",
            is_flag=True,
            help="Accept an unencrypted connection to a database on another machine.",
        ),
        click.option(
            "--database-path",
            type=click.Path(path_type=Path),
            help=f"File with the DSN of the database. Alternatively, set {ENVIRONMENT}.",
        ),
        click.option(
            "--database", "dsn", metavar="DSN", help="DSN of the database, without a password."
        ),
    ):
        command = option(command)
    return command


class UnreadableDsn(ConfigError):
    """the DSN from {source} is neither a postgresql:// URI nor key=value pairs (it is not shown, for it may hold a password)"""


def host_and_port(where: str) -> tuple[str, int]:
    """Split HOST:PORT; the host may be in brackets."""
    host, _, port = where.rpartition(":")
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536 and host):
        raise click.BadParameter(f"{where!r} is not HOST:PORT", param_hint="HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def dsn_from_file_or_environment(path: Path | None, insecure: bool = False) -> str | None:
    """Read the DSN from a file, or from the environment; None if there is neither.

    :param insecure: whether an unencrypted connection to another machine is accepted
    :raises BadSecretFile: the file cannot be read, or others can read it
    :raises UnreadableDsn: it is not a DSN
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
    """Check that a DSN is encrypted, unless plain text is accepted.

    :raises PlainTextDatabase: :raises BadDsn:
    """
    if not insecure:
        refuse_plain_text(dsn, "--insecure")


def shown_dsn(dsn: str, source: str) -> str:
    """A DSN without its password.

    :raises UnreadableDsn: it is not a DSN
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
    """The DSN from the command line, a file or the environment; None if there is none.

    :param insecure: whether an unencrypted connection to another machine is accepted
    :raises TwoDatabases: :raises PasswordOnCommandLine:
    :raises BadSecretFile: the file cannot be read, or others can read it
    :raises UnreadableDsn: it is not a DSN
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
