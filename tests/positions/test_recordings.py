"""Cursors on lines of real servers: nothing may seem missing that was not."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from unittest import TestCase

from synrepl.positions.cursor import Cursor, CursorDecision, Fetch, Reset

CAPTURES = Path(__file__).parent.parent / "data" / "captures"
UNORDERED = {"backfill", "caches"}


def lines(path: str) -> Iterator[list[str]]:
    with gzip.open(CAPTURES / path, "rt", encoding="utf-8", errors="surrogateescape") as capture:
        for record in map(json.loads, capture):
            if record.get("dir", "S") == "S" and "line" in record:
                yield record["line"].split(" ", 4)


def verdicts(path: str) -> Counter[tuple[str, str]]:
    """The cursors of a follower that starts with the recording, by stream."""
    cursors: dict[tuple[str, str], Cursor] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for command, *rest in lines(path):
        if command not in ("RDATA", "POSITION"):
            continue
        stream, writer, first = rest[:3]
        cursor = cursors.setdefault((stream, writer), Cursor(None, unordered=stream in UNORDERED))
        if command == "POSITION":
            verdict = cursor.on_position(int(first), int(rest[3]))
        elif first == "batch":
            continue  # the row that carries the token stands for its fact
        else:
            verdict = cursor.on_rdata(int(first))
            if verdict is CursorDecision.APPLY:
                cursor.applied(int(first))
        if isinstance(verdict, Fetch):
            cursor.caught_up(verdict.span.upto)
        name = type(verdict).__name__ if isinstance(verdict, (Fetch, Reset)) else verdict.name
        counts[stream, f"{command} {name}"] += 1
    return counts


class CursorOnRecordings(TestCase):
    def troubles(self, path: str) -> dict[tuple[str, str], int]:
        fine = {"RDATA APPLY", "POSITION ADVANCED", "POSITION DUPLICATE"}
        return {key: count for key, count in verdicts(path).items() if key[1] not in fine}

    def test_follows_eight_processes_on_redis(self) -> None:
        self.assertEqual(self.troubles("1.163.2/redis.jsonl.gz"), {})

    def test_follows_a_modern_server(self) -> None:
        self.assertEqual(self.troubles("1.43.0/live.jsonl.gz"), {})
        self.assertEqual(self.troubles("1.43.0/live-large.jsonl.gz"), {})

    def test_a_stream_that_shares_its_sequence_is_looked_up_once(self) -> None:
        # 1.43's user_signature moves with device_lists and does not say so by itself.
        troubles = self.troubles("1.43.0/live-forks.jsonl.gz")
        self.assertEqual(troubles, {("user_signature", "POSITION Fetch"): 1})
