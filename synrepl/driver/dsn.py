"""Parses DSNs, and checks without connecting whether they are secret and require encryption."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from pathlib import Path

import psycopg2
from psycopg2 import extensions

from synrepl.core.errors import ConfigError
from synrepl.core.loopback import first_remote_host

#: Modes in which libpq refuses a server without TLS. 'require' does not verify the server.
_ENCRYPTED = frozenset({"require", "verify-ca", "verify-full"})

#: DSN parameters, and the environment variables that libpq falls back to.
_VARIABLES = {
    "host": "PGHOST",
    "hostaddr": "PGHOSTADDR",
    "sslmode": "PGSSLMODE",
    "gssencmode": "PGGSSENCMODE",
}

_SECRETS = frozenset({"password", "sslpassword"})


class BadDsn(ConfigError):
    """the DSN of the database cannot be read (it is not shown, for it may hold a password): use postgresql://user:password@host:port/name or "host=… port=… dbname=… user=… password=…\""""


class PlainTextDatabase(ConfigError):
    """the database at {host!r} is on another machine, and its DSN does not ask for TLS: add sslmode=verify-full to it (verify-ca or require will do; require does not check who answers), or accept plain text by {insecure}"""


def parse_dsn(dsn: str) -> dict[str, str]:
    """Parse a libpq URI or key=value string into its parameters.

    :raises BadDsn: it is neither
    """
    try:
        return dict(extensions.parse_dsn(dsn))
    except psycopg2.Error:
        raise BadDsn() from None


def holds_password(dsn: str) -> bool:
    """Whether the DSN contains a password.

    :raises BadDsn: it cannot be parsed
    """
    return not _SECRETS.isdisjoint(parse_dsn(dsn))


def refuse_plain_text(dsn: str, insecure: str, environ: Mapping[str, str] = os.environ) -> None:
    """Refuse a DSN that may send passwords or rows to another machine in plain text.

    Parameters missing from the DSN are looked up as libpq does: in the service that it
    names, then in the environment.

    :param insecure: the setting that permits plain text, such as "'database_insecure: true'"
    :raises PlainTextDatabase: a remote host may be reached without TLS
    :raises BadDsn: it cannot be parsed
    """
    given = parse_dsn(dsn)
    service = given.get("service") or environ.get("PGSERVICE", "")
    found = {key: environ[name] for key, name in _VARIABLES.items() if environ.get(name)}
    found |= (_service(service, environ) if service else {}) | given
    encrypted = found.get("sslmode") in _ENCRYPTED or found.get("gssencmode") == "require"
    host = None if encrypted else first_remote_host(_hosts(found))
    if host is not None:
        raise PlainTextDatabase(host=host, insecure=insecure)


def _hosts(parameters: Mapping[str, str]) -> list[str]:
    """The hosts that libpq tries, which are separated by commas; an empty list means a unix socket."""
    names = parameters.get("host", "").split(",")
    addresses = parameters.get("hostaddr", "").split(",")
    count = max(len(names), len(addresses))
    padded = zip(addresses + [""] * count, names + [""] * count, strict=False)
    return [host for address, name in padded if (host := (address or name).strip())]


def _service(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The parameters of a service. One that is not found counts as a remote host."""
    own = environ.get("PGSERVICEFILE") or Path.home() / ".pg_service.conf"
    common = environ.get("PGSYSCONFDIR") or "/etc/postgresql-common"
    for path in (Path(own), Path(common) / "pg_service.conf"):
        services = configparser.RawConfigParser(strict=False, delimiters="=")
        try:
            services.read(path, encoding="utf-8")
            return dict(services.items(name))
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue
    return {"host": f"service {name}"}
