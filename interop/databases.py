"""The databases of the Synapses: one PostgreSQL, one virgin database per release, copies of it."""

from __future__ import annotations

from pathlib import Path
from secrets import token_hex
from typing import Any, Self
from urllib.parse import urlsplit

import psycopg2

from interop.releases import Release
from synrepl.storage.launch.postgres import PostgresServer


class Databases:
    """A PostgreSQL for throw-away databases, as a ``with`` block that stops it.

    An installed PostgreSQL is preferred, for old releases of Synapse may know
    it better; else it is the one of the pip package.

    :param directory: of its data
    """

    def __init__(self, directory: Path) -> None:
        self._server = PostgresServer(directory, prefer_system=True)

    def empty(self, name: str) -> str:
        """Make a database without anything in it."""
        return self._create(name, "template0")

    def copy(self, release: Release, name: str) -> str:
        """Make a copy of a release's virgin database."""
        return self._create(name, release.database)

    def arguments(self, name: str) -> dict[str, Any]:
        """How a Synapse is told to connect."""
        found = urlsplit(self._server.dsn)
        return {
            "database": name,
            "host": found.hostname,
            "port": found.port,
            "user": found.username,
            "password": found.password,
            "cp_min": 1,
            "cp_max": 5,
        }

    def reader(self, name: str) -> str:
        """The DSN of a role that may read everything in a database, and write nothing."""
        found = urlsplit(self._server.dsn)
        role, password = f"reader_{name}", token_hex(16)
        rights = "pg_read_all_data, pg_read_all_stats"
        self._execute(f"CREATE ROLE \"{role}\" LOGIN PASSWORD '{password}' IN ROLE {rights}")
        return f"postgresql://{role}:{password}@{found.hostname}:{found.port}/{name}"

    def version(self) -> str:
        """PostgreSQL's own."""
        ((text,),) = self._execute("SHOW server_version")
        return str(text).partition(" ")[0]

    def _create(self, name: str, template: str) -> str:
        locale = "ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'"
        self._execute(f'CREATE DATABASE "{name}" {locale} TEMPLATE "{template}"')
        return name

    def _execute(self, statement: str) -> list[tuple[Any, ...]]:
        connection = psycopg2.connect(self._server.dsn)
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
