"""What a DSN says before anybody connects: where to, whether it is encrypted, whether it is secret."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from pathlib import Path

import psycopg2
from psycopg2 import extensions

from synrepl.core.errors import ConfigError
from synrepl.core.loopback import first_remote_host

#: From these on libpq refuses a server without TLS. 'require' takes whatever server answers.
_ENCRYPTED = frozenset({"require", "verify-ca", "verify-full"})

#: Parameters of a DSN, and the variables that libpq takes them from otherwise.
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
    """The parameters of a libpq URI or key=value string.

    :raises BadDsn: it is neither
    """
    try:
        return dict(extensions.parse_dsn(dsn))
    except psycopg2.Error:
        raise BadDsn() from None


def holds_password(dsn: str) -> bool:
    """Whether whoever reads the DSN can connect.

    :raises BadDsn: it cannot be read
    """
    return not _SECRETS.isdisjoint(parse_dsn(dsn))


def refuse_plain_text(dsn: str, insecure: str, environ: Mapping[str, str] = os.environ) -> None:
    """See that no password or row goes to another machine in plain text.

    What the DSN leaves open is looked up as libpq does: in the service that it
    names, then in the environment.

    :param insecure: how a user accepts plain text, such as "'database_insecure: true'"
    :raises PlainTextDatabase: it may go there in plain text
    :raises BadDsn: it cannot be read
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
    """Where libpq tries to connect; several have commas between them, none is a unix socket."""
    names = parameters.get("host", "").split(",")
    addresses = parameters.get("hostaddr", "").split(",")
    count = max(len(names), len(addresses))
    padded = zip(addresses + [""] * count, names + [""] * count, strict=False)
    return [host for address, name in padded if (host := (address or name).strip())]


def _service(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The parameters of a service; one that is not found may be anywhere."""
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
