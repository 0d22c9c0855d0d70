"""A handler for our worker that writes every row to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from synrepl.core.tokens import Range, Token
from synrepl.services.handlers import Batch, Handler
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Generation
from synrepl.streams.rows import RowCodec
from synrepl.streams.synapse import SYNAPSE_STREAMS


class LoggedRow(NamedTuple):
    """A row as the handler received it, with the cells of the requested generation."""

    token: int
    row: object


class RowLog(Handler):
    """Writes one line of JSON per row, and one per reset.

    :param path: the file, which is appended to
    :param generation: the generation whose cells are written, for comparison with rows on the wire
    """

    def __init__(self, path: str, generation: str) -> None:
        self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115
        known = Catalogue(SYNAPSE_STREAMS).known_to(Generation(generation))
        self._encode = {s.name: RowCodec(s).encoder(Generation(generation)) for s in known}

    async def on_rows(self, batch: Batch) -> None:
        """Write the rows."""
        encode = self._encode[batch.stream]
        lines = [
            b'["%b",%d,%b]\n' % (batch.stream.encode(), fact.token, encode(row))
            for fact in batch.facts
            for row in fact.rows
        ]
        self._file.write(b"".join(lines))

    async def on_reset(
        self, stream: str, writer: str, position: Token, lost: Range | None = None
    ) -> None:
        """Write the reset as well, because none is expected."""
        self._file.write(b'["%b",null,"reset to %d"]\n' % (stream.encode(), position))


def read(path: Path) -> dict[str, list[LoggedRow]]:
    """The rows written so far, by stream and in order, without an incomplete last line."""
    found: dict[str, list[LoggedRow]] = {}
    data = path.read_bytes() if path.exists() else b""
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        stream, token, row = json.loads(line)
        found.setdefault(stream, []).append(LoggedRow(token, row))
    return found
