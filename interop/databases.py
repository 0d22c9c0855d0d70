"""The databases of the Synapse servers: on one PostgreSQL, a template per release and copies of it."""

from __future__ import annotations

from pathlib import Path
from secrets import token_hex
from typing import Any, Self
from urllib.parse import urlsplit

import psycopg2

from interop.releases import Release
from synrepl.storage.launch.postgres import PostgresServer


class Databases:
    """A PostgreSQL for temporary databases; a context manager, which starts and stops it.

    An installed PostgreSQL is preferred to that of the pip package, because old releases of Synapse
    are more likely to support it.

    :param directory: its data directory
    """

    def __init__(self, directory: Path) -> None:
        self._server = PostgresServer(directory, prefer_system=True)

    def empty(self, name: str) -> str:
        """Create an empty database; its name."""
        return self._create(name, "template0")

    def copy(self, release: Release, name: str) -> str:
        """Create a copy of a release's template database; its name."""
        return self._create(name, release.database)

    def duplicate(self, name: str, copy: str) -> str:
        """Create a copy of a database that no one uses; its name."""
        return self._create(copy, name)

    def arguments(self, name: str) -> dict[str, Any]:
        """Connection arguments for the configuration of a Synapse."""
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
        """Create a role that may read everything in a database and write nothing; its DSN."""
        found = urlsplit(self._server.dsn)
        role, password = f"reader_{name}", token_hex(16)
        rights = "pg_read_all_data, pg_read_all_stats"
        self._execute(f"CREATE ROLE \"{role}\" LOGIN PASSWORD '{password}' IN ROLE {rights}")
        return f"postgresql://{role}:{password}@{found.hostname}:{found.port}/{name}"

    def owner(self, name: str) -> str:
        """The DSN of the owner of a database."""
        found = urlsplit(self._server.dsn)
        return found._replace(path=f"/{name}").geturl()

    def version(self) -> str:
        """The version of PostgreSQL."""
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
