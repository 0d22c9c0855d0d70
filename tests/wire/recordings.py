"""Recorded traffic of real servers; the formats are in ``tests/data/captures/README.md``."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from synrepl.wire.dialects import CURRENT, LEGACY, MODERN, TRANSITIONAL, Dialect, Side

CAPTURES = Path(__file__).parent.parent / "data" / "captures"

DIALECT_OF: Mapping[str, Dialect] = {
    "1.0.0": LEGACY,
    "1.11.1": LEGACY,
    "1.20.1": TRANSITIONAL,
    "1.43.0": MODERN,
    "1.74.0": CURRENT,
    "1.163.2": CURRENT,
}

SIDES = {"S": Side.SERVER, "C": Side.CLIENT}

#: Files with input that is wrong on purpose.
SCRIPTED = ("errors", "overflow", "worker-reactions")


def records(version: str, name: str) -> Iterator[dict[str, Any]]:
    """The objects of one file."""
    with gzip.open(CAPTURES / version / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        for text in file:
            yield json.loads(text)


def cases(version: str, name: str) -> dict[str, list[dict[str, Any]]]:
    """The objects of a file with cases, those about lines, by case."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in records(version, name):
        if "dir" in record:
            found[record["case"]].append(record)
    return found


def captures() -> Iterator[tuple[str, str]]:
    """Version and name of every file whose lines are all genuine."""
    for path in sorted(CAPTURES.glob("*/*.jsonl.gz")):
        name = path.name.removesuffix(".jsonl.gz")
        if name not in SCRIPTED:
            yield path.parent.name, name


def genuine_lines(version: str, name: str) -> Iterator[tuple[Side, bytes]]:
    """Senders and lines; lines on Redis, which has no sides, are attributed to a client."""
    for record in records(version, name):
        side = SIDES.get(record.get("dir", "C"))
        if side is not None:
            yield side, record["line"].encode("utf-8", "surrogateescape")


def sent_bytes(record: Mapping[str, Any]) -> bytes:
    """The bytes of a client's line in ``errors``; long lines repeat their beginning."""
    if "hex" not in record:
        line: str = record["line"]
        return line.encode() + b"\n"
    start = bytes.fromhex(record["hex"])
    missing = record["length"] - len(start)
    return start + start[-1:] * (missing - 1) + b"\n" if missing > 0 else start
