"""Folders for servers that a test starts by itself, and a question to any server."""

from __future__ import annotations

import atexit
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import psycopg2

from synrepl.storage.launch.postgres import PostgresServer


def new_folder(case: Any) -> Path:
    """A data folder that is not there yet. Not trial's own: another user has to be able to enter it."""
    folder = Path(mkdtemp(prefix="synrepl-test-"))
    folder.chmod(0o755)
    case.addCleanup(shutil.rmtree, folder, ignore_errors=True)
    return folder / "data"


@cache
def used_folder() -> Path:
    """The data folder of a server that is not running; tests share it, for making one takes a while."""
    folder = Path(mkdtemp(prefix="synrepl-test-"))
    folder.chmod(0o755)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    server = PostgresServer(folder / "data", fsync=False)
    server.start()
    server.stop()
    return folder / "data"


def one(dsn: str, sql: str) -> Any:
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            row = cursor.fetchone() if cursor.description else None
            return None if row is None else row[0]
    finally:
        connection.close()
