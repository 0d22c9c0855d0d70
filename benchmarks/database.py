"""A temporary PostgreSQL server for a benchmark, with fsync on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from synrepl.storage.launch.postgres import PostgresServer


@contextmanager
def postgres() -> Iterator[str]:
    """Run a temporary server; yields its DSN."""
    with postgres_server() as server:
        yield server.dsn


@contextmanager
def postgres_server(*, prefer_system: bool = False) -> Iterator[PostgresServer]:
    """Run a temporary server that the benchmark may restart.

    :param prefer_system: run an installed PostgreSQL rather than the pip package's
    """
    directory = Path(mkdtemp(prefix="synrepl-benchmark-"))
    server = PostgresServer(directory, prefer_system=prefer_system)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
