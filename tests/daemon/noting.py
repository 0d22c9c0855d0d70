"""A handler for tests of whole processes."""

from __future__ import annotations

from pathlib import Path

from synrepl.services.handlers import Batch, Handler


class Noting(Handler):
    """Writes the order of every row it sees into a file."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    async def on_rows(self, batch: Batch) -> None:
        with self._path.open("a") as file:
            for row in batch.rows:
                file.write(f"{row.order_id}\n")  # type: ignore[attr-defined]
