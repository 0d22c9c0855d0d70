"""Handlers for tests of whole processes, which record what they get."""

from __future__ import annotations

import sys
from pathlib import Path

from synrepl.services.handlers import Access, Batch, Handler


class RowRecorder(Handler):
    """Writes the order ID of every row into a file."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    async def on_rows(self, batch: Batch) -> None:
        with self._path.open("a") as file:
            for row in batch.rows:
                file.write(f"{row.order_id}\n")  # type: ignore[attr-defined]


class TokenRecorder(Handler):
    """Writes the token of every fact into a file, and reports when all of them are there."""

    def __init__(self, path: str, tokens: int) -> None:
        self._path = Path(path)
        self._tokens = tokens
        self._seen: set[int] = set()

    async def on_rows(self, batch: Batch) -> None:
        with self._path.open("a") as file:
            for fact in batch.facts:
                if fact.token not in self._seen:
                    file.write(f"{fact.token}\n")
                self._seen.add(fact.token)
        if len(self._seen) == self._tokens:
            print("all are there", file=sys.stderr, flush=True)


class QueryOnStart(Handler):
    """Queries the database in ``on_start``."""

    async def on_start(self, access: Access) -> None:
        assert access.database is not None
        await access.database.run("ask", lambda txn: txn.execute("SELECT 1").fetchone())
