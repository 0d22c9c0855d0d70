"""Data folders of servers that a test starts by itself, and a query on any server."""

from __future__ import annotations

import atexit
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import psycopg2

from synrepl.storage.launch.postgres import PostgresServer
from synrepl.testing.directories import server_directory


def new_data_dir(case: Any) -> Path:
    """A data folder that does not exist yet, outside trial's folder so that another user can enter it."""
    folder = server_directory()
    folder.chmod(0o755)
    case.addCleanup(shutil.rmtree, folder, ignore_errors=True)
    return folder / "data"


@cache
def existing_data_dir() -> Path:
    """The data folder of a stopped server, which tests share because making one takes a while."""
    folder = server_directory()
    folder.chmod(0o755)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    server = PostgresServer(folder / "data", fsync=False)
    server.start()
    server.stop()
    return folder / "data"


def query_one(dsn: str, sql: str) -> Any:
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            row = cursor.fetchone() if cursor.description else None
            return None if row is None else row[0]
    finally:
        connection.close()
