"""Records facts that a plain handler receives in a file, and reads the file without duplicates."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from synrepl.cli.demo.recorder import FactDigest, digest_fact
from synrepl.core.tokens import Range, Token
from synrepl.services.handlers import Batch, Handler

#: The last cell: a line that lacks it was not finished.
_END = "."

#: Takes the place of a fact's digest in a record of lost facts.
_LOST = "lost"

_CELLS = 6


class FactFileRecorder(Handler):
    """Writes every fact to a file before its position moves.

    :param path: the file, which is added to
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    async def on_rows(self, batch: Batch) -> None:
        """Record a batch."""
        entries = (digest_fact(fact.token, batch.writer, fact.rows) for fact in batch.facts)
        lines = [_line(batch.stream, each) for each in entries]
        self._write("".join(lines))

    async def on_reset(
        self, stream: str, writer: str, position: Token, lost: Range | None = None
    ) -> None:
        """Record what a failover lost."""
        if lost is not None:
            self._write(f"{stream}\t{lost.after}\t{writer}\t{lost.upto}\t{_LOST}\t{_END}\n")

    def _write(self, lines: str) -> None:
        # The first newline ends a partial line that a killed process has left.
        left = memoryview(f"\n{lines}".encode())
        while left:
            left = left[os.write(self._file, left) :]


class RecordedFacts(NamedTuple):
    """A recorded file without duplicates.

    :ivar entries: by stream, in the order in which they were first received
    :ivar repeated: facts that were received again, which is allowed
    :ivar changed: facts that were received again with other rows, which is not
    :ivar lost: stream, writer and range of the facts that were reported to the handler as lost
    """

    entries: dict[str, list[FactDigest]]
    repeated: int
    changed: int
    lost: list[tuple[str, str, Range]]


def read_recorded(path: Path) -> RecordedFacts:
    """Read a file, without duplicates."""
    with path.open(encoding="utf-8") as lines:
        return deduplicated(lines)


def deduplicated(lines: Iterable[str]) -> RecordedFacts:
    """The facts of lines; an unfinished line is skipped, because its fact is received again."""
    seen: dict[tuple[str, str, Token], FactDigest] = {}
    found = RecordedFacts({}, 0, 0, [])
    repeated = changed = 0
    for line in lines:
        cells = line.rstrip("\n").split("\t")
        if len(cells) != _CELLS or cells[-1] != _END:
            continue
        stream, token, writer, rows, digest, _ = cells
        if digest == _LOST:
            found.lost.append((stream, writer, Range(int(token), int(rows))))
            continue
        one = FactDigest(int(token), writer, int(rows), bytes.fromhex(digest))
        before = seen.setdefault((stream, writer, one.token), one)
        if before is one:
            found.entries.setdefault(stream, []).append(one)
        else:
            repeated += 1
            changed += before != one
    return found._replace(repeated=repeated, changed=changed)


def _line(stream: str, one: FactDigest) -> str:
    return f"{stream}\t{one.token}\t{one.writer}\t{one.rows}\t{one.digest.hex()}\t{_END}\n"
