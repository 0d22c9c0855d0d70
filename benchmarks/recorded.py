"""Facts and lines as recorded from a real server of the modern dialect."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import cycle, islice

from benchmarks.child import REPOSITORY
from synrepl.streams.definition import Fact
from synrepl.streams.row import Row
from synrepl.streams.rows import RowCodec
from synrepl.streams.synapse.events import EVENTS

_CAPTURES = REPOSITORY / "tests" / "data" / "captures" / "1.43.0"

WRITER = "master"

#: Where the writer stands at first; one that sets out from 0 would be introduced.
BEFORE = 1


def server_lines(command: str) -> Iterator[bytes]:
    """Lines beginning with ``command`` that the server sent to its recording client."""
    for path in sorted(_CAPTURES.glob("live*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as capture:
            for text in capture:
                if f'"line": "{command}' in text:
                    record = json.loads(text)
                    if record["dir"] == "S":
                        yield record["line"].encode()


def event_facts() -> list[tuple[Row, ...]]:
    """The rows of each recorded fact of ``events``: 1.5 of 139 bytes on average."""
    decode = RowCodec(EVENTS).decode
    facts: list[tuple[Row, ...]] = []
    rows: list[Row] = []
    for line in server_lines("RDATA events "):
        _, _, _, token, row = line.split(b" ", 4)
        rows.append(decode(row))
        if token != b"batch":
            facts.append(tuple(rows))
            rows = []
    return facts


def rdata_lines(count: int) -> tuple[list[bytes], list[bytes]]:
    """Up to ``count`` recorded lines of all streams, in their order, with new tokens.

    The last lines are left out when they are only a part of a fact.

    :returns: the POSITIONs to begin with, and the lines, each with its newline
    """
    recorded = [line.split(b" ", 4) for line in server_lines("RDATA ")]
    _drop_half_fact(recorded)  # so that going round and round splits no fact
    pieces = list(islice(cycle(recorded), count))
    _drop_half_fact(pieces)
    tokens: dict[bytes, int] = {}
    lines = []
    for _, stream, writer, token, row in pieces:
        key = b"%b %b" % (stream, writer)
        reached = tokens.setdefault(key, 0)
        if token != b"batch":
            tokens[key] = reached + 1
            token = b"%d" % (reached + 1)
        lines.append(b"RDATA %b %b %b\n" % (key, token, row))
    return [b"POSITION %b 0 0\n" % key for key in tokens], lines


def _drop_half_fact(pieces: list[list[bytes]]) -> None:
    while pieces[-1][3] == b"batch":
        pieces.pop()


def numbered(count: int) -> list[Fact]:
    """``count`` facts with the tokens after :data:`BEFORE`, the recorded ones again and again."""
    rows = islice(cycle(event_facts()), count)
    return [Fact(token, WRITER, each) for token, each in enumerate(rows, BEFORE + 1)]
