"""Every line of real servers and workers is parsed, and written back byte for byte."""

from __future__ import annotations

from collections import Counter
from unittest import TestCase

from synrepl.wire import commands as c
from synrepl.wire.codec import parse_line, write_line
from synrepl.wire.dialects import Side
from tests.wire.recordings import DIALECT_OF, SIDES, captures, cases, genuine_lines


class RecordedLines(TestCase):
    def test_parses_and_writes_every_recorded_line(self) -> None:
        total = 0
        for version, name in captures():
            dialect = DIALECT_OF[version]
            with self.subTest(version=version, name=name):
                for sender, line in genuine_lines(version, name):
                    written = write_line(parse_line(line, dialect, sender), dialect)
                    if version == "1.74.0" and line.startswith(b"USER_SYNC "):
                        # It names no device yet, which is written in today's way.
                        parts = line.split(b" ")
                        line = b" ".join([*parts[:3], b"None", *parts[3:]])
                    # The recorder's own REPLICATE has no space behind it; real workers' has.
                    if line != b"REPLICATE":
                        self.assertEqual(written, line)
                    total += 1
        self.assertEqual(total, 71_952)

    def test_redis_lines_belong_to_either_side(self) -> None:
        for _, line in genuine_lines("1.163.2", "redis"):
            for sender in Side:
                parse_line(line, DIALECT_OF["1.163.2"], sender)

    def test_reproduces_scripted_sessions_of_real_servers_and_workers(self) -> None:
        seen: Counter[tuple[str, str]] = Counter()
        for version in ("1.11.1", "1.43.0"):
            # In "worker-reactions" the server is a script and only the worker is real.
            for name, real in (("errors", "S"), ("overflow", "S"), ("worker-reactions", "C")):
                for records in cases(version, name).values():
                    for record in records:
                        # "overflow" ends with what was cut off in mid-line.
                        if record["dir"] != real or _is_cut(name, record is records[-1]):
                            continue
                        line = record["line"].encode()
                        dialect = DIALECT_OF[version]
                        command = parse_line(line, dialect, SIDES[real])
                        if not isinstance(command, c.Error):
                            self.assertEqual(write_line(command, dialect), line)
                        seen[version, name] += 1
        self.assertGreater(min(seen.values()), 2)
        self.assertEqual(len(seen), 6)


def _is_cut(name: str, last: bool) -> bool:
    return name == "overflow" and last
