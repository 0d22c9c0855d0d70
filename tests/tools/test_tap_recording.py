"""Recordings are written and read back; malformed ones are refused with the line."""

from __future__ import annotations

import gzip
import json
import os
import stat
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import TestCase

from hypothesis import given, settings
from hypothesis import strategies as st

from synrepl.tools.judge.judge import Recorded
from synrepl.tools.tap.recorders import RecordedSession
from synrepl.tools.tap.recording import (
    NoRecording,
    NotARecording,
    RecordingDialectUnknown,
    RecordingFile,
    RecordingInfo,
    ScriptedRecording,
    read_recording,
    recording_info,
)
from synrepl.tools.tap.recording_judge import RecordingJudge, Tally
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import Replicate
from synrepl.wire.dialects import CURRENT, LEGACY, MODERN, TRANSITIONAL, Side
from synrepl.wire.session import SessionLimits
from tests.support.descriptors import descriptor_of
from tests.wire.recordings import CAPTURES


class TemporaryDirectoryCase(TestCase):
    def setUp(self) -> None:
        directory = TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def written(self, text: str | bytes, name: str = "r.jsonl") -> Path:
        path = self.directory / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path


class RecordingFiles(TemporaryDirectoryCase):
    def test_can_be_read_while_it_grows_and_after_it_was_closed(self) -> None:
        for name in ("plain.jsonl", "zipped.jsonl.gz"):
            path = self.directory / name
            file = RecordingFile(path)
            file.write(7, "-", [b"connected"])
            file.write(8, "S", [b"SERVER x", b"\xff\x00\xe2\x82\xac"])
            expected = [
                Recorded(1, 7, None, b"connected"),
                Recorded(2, 8, Side.SERVER, b"SERVER x"),
                Recorded(3, 8, Side.SERVER, b"\xff\x00\xe2\x82\xac"),
            ]
            # It can be read while it grows.
            self.assertEqual(list(read_recording(path)), expected)
            file.write(9, "C", [b"PING 1"])
            file.close()
            self.assertEqual(file.lines, 4)
            expected.append(Recorded(4, 9, Side.CLIENT, b"PING 1"))
            self.assertEqual(list(read_recording(path)), expected)

    def test_is_readable_only_by_its_owner(self) -> None:
        path = self.directory / "r.jsonl"
        RecordingFile(path).close()
        self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)

    def test_never_overwrites_a_file(self) -> None:
        path = self.written("precious")
        with self.assertRaises(NoRecording) as caught:
            RecordingFile(path)
        self.assertIn("File exists", str(caught.exception))
        self.assertEqual(path.read_text(), "precious")

    def test_hides_lines_but_not_notes(self) -> None:
        path = self.directory / "r.jsonl"
        file = RecordingFile(path, lambda line: line.upper())
        for direction in ("-", "S", "C", "S-partial"):
            file.write(1, direction, [b"abc"])
        file.close()
        lines = [json.loads(line)["line"] for line in path.read_text().splitlines()]
        self.assertEqual(lines, ["abc", "ABC", "ABC", ""])

    def test_refuses_a_malformed_line_by_its_number(self) -> None:
        good = '{"t":1,"dir":"S","line":"SERVER x"}\n'
        for text, reason in (
            ("nonsense\n", "no JSON"),
            ("[1]\n", "got `array`"),
            ("{}\n", "field `t`"),
            ('{"t":-1,"dir":"S","line":""}\n', "$.t"),
            ('{"t":true,"dir":"S","line":""}\n', "$.t"),
            ('{"t":1,"dir":"X","line":""}\n', "$.dir"),
            ('{"t":1,"dir":"S","line":5}\n', "$.line"),
            ('{"t":1,"dir":"S","line":"\\ud800"}\n', "no JSON"),
            ('{"t":1,"channel":"\\udcff","line":""}\n', "no JSON"),
            ('{"t":1,"line":"x"}\n', "neither dir nor channel"),
            ("[" * 100_000 + "\n", "no JSON"),
            ("1" * 5_000 + "\n", "no JSON"),
        ):
            with self.subTest(text[:40]):
                path = self.written(good + text)
                with self.assertRaises(NotARecording) as caught:
                    list(read_recording(path))
                self.assertIn(f"{path}, line 2: ", str(caught.exception))
                self.assertIn(reason, str(caught.exception))

    def test_refuses_scripted_cases(self) -> None:
        for name in ("errors", "overflow", "worker-reactions"):
            path = CAPTURES / "1.43.0" / f"{name}.jsonl.gz"
            with self.assertRaises(ScriptedRecording) as caught:
                RecordingJudge(path)
            self.assertIn(f"{path} is made of scripted cases", str(caught.exception))

    def test_refuses_files_that_cannot_be_read(self) -> None:
        damaged = bytearray(gzip.compress(b'{"t":1,"dir":"S","line":"x"}\n' * 100))
        damaged[10:14] = b"\xff" * 4
        for path in (
            self.directory / "missing.jsonl",
            self.directory,
            self.written("plain", "r.jsonl.gz"),
            self.written(bytes(damaged), "d.jsonl.gz"),
        ):
            with self.assertRaises(NoRecording) as caught:
                list(read_recording(path))
            self.assertIn(f"cannot open {path}: ", str(caught.exception))

    @given(st.binary(max_size=200))
    @settings(max_examples=50, deadline=None)
    def test_reads_back_any_line(self, line: bytes) -> None:
        path = self.directory / "any.jsonl"
        path.unlink(missing_ok=True)
        file = RecordingFile(path)
        file.write(1, "S", [line])
        file.close()
        self.assertEqual([recorded.text for recorded in read_recording(path)], [line])


class RecordingInfos(TemporaryDirectoryCase):
    def test_detects_the_properties_of_real_recordings(self) -> None:
        for version, name, expected in (
            ("1.11.1", "live", RecordingInfo(LEGACY, "localhost:18301", None)),
            ("1.11.1", "worker-event_creator1", RecordingInfo(LEGACY, "localhost:18301", 5)),
            ("1.43.0", "live", RecordingInfo(MODERN, "localhost:18501", None)),
            ("1.43.0", "worker-pusher1-reconnect", RecordingInfo(MODERN, "localhost:18501", 6)),
            ("1.163.2", "redis", RecordingInfo(CURRENT, "localhost:18701", None)),
        ):
            path = CAPTURES / version / f"{name}.jsonl.gz"
            self.assertEqual(recording_info(read_recording(path)), expected)

    def test_detects_the_dialect_from_the_arguments(self) -> None:
        def of(*lines: tuple[Side, bytes]) -> RecordingInfo:
            return recording_info(
                Recorded(n, 0, side, line) for n, (side, line) in enumerate(lines, 1)
            )

        server, client = Side.SERVER, Side.CLIENT
        self.assertEqual(of((server, b"POSITION events 1")).dialect, LEGACY)
        self.assertEqual(of((server, b"POSITION events m 1")).dialect, TRANSITIONAL)
        self.assertEqual(of((server, b"POSITION events m 1 2")).dialect, MODERN)
        self.assertEqual(of((client, b"REPLICATE events NOW")).dialect, LEGACY)
        self.assertEqual(of((client, b"REPLICATE ")).dialect, MODERN)
        asked = ((client, b"REPLICATE "), (server, b"SERVER x"), (server, b"POSITION e m 1"))
        self.assertEqual(of(*asked), RecordingInfo(TRANSITIONAL, "x", None))
        self.assertEqual(of((server, b"SERVER two words")), RecordingInfo(None, None, None))
        several = [
            Recorded(1, 0, server, b"SERVER a", 4),
            Recorded(2, 0, server, b"SERVER b", 5),
            Recorded(3, 0, server, b"POSITION e 1", 5),
        ]
        self.assertEqual(recording_info(several), RecordingInfo(LEGACY, "a", 4))

    def test_an_unknown_dialect_has_to_be_given(self) -> None:
        path = self.written('{"t":1,"dir":"S","line":"SERVER x"}\n')
        with self.assertRaises(RecordingDialectUnknown) as caught:
            RecordingJudge(path)
        self.assertIn("--dialect", str(caught.exception))
        judge = RecordingJudge(path, MODERN)
        self.assertEqual(list(judge.findings()), [])
        self.assertEqual(judge.lines, 1)


class RecordingJudges(TemporaryDirectoryCase):
    def test_counts_breaches_and_known_faults(self) -> None:
        path = self.written(
            "".join(
                json.dumps({"t": 1, "channel": "x", "line": line}) + "\n"
                for line in (
                    "RDATA caches m 5 []",
                    "RDATA events m 5 []",
                    "RDATA caches m 5 []",
                    "RDATA events m 4 []",
                    "RDATA events m 3 []",
                )
            )
        )
        judge = RecordingJudge(path)
        lines = [finding.line for finding in judge.findings()]
        self.assertEqual(lines, [3, 4, 5])
        self.assertEqual(judge.breaches, {"order": Tally(2, 4)})
        self.assertEqual(judge.known, {"unordered": Tally(1, 3)})


class RecordedSessions(TemporaryDirectoryCase):
    """A session records what it sends and receives."""

    def session(self, limits: SessionLimits = SessionLimits()) -> RecordedSession:
        self.path = self.directory / "s.jsonl"
        self.file = RecordingFile(self.path)
        session = RecordedSession(
            self.file, lambda: 12.0, name="tap", dialect=MODERN, limits=limits
        )
        session.start()
        session.data_to_send()
        return session

    def recorded(self) -> list[tuple[str, str]]:
        self.file.close()
        objects = [json.loads(line) for line in self.path.read_text().splitlines()]
        self.assertEqual({record["t"] for record in objects}, {12_000})
        return [(record["dir"], record["line"]) for record in objects]

    greeting = (("-", "connected"), ("C", "NAME tap"), ("C", "PING 12000"))

    def test_records_both_directions(self) -> None:
        session = self.session()
        session.send(Replicate(), 12.0)
        session.data_to_send()
        session.receive(b"SERVER x\nPOSITION events m 1 ", 12.0)
        session.receive(b"1\nRDATA ev", 12.0)
        session.connection_lost()
        self.assertEqual(
            self.recorded(),
            [
                *self.greeting,
                ("C", "REPLICATE "),
                ("S", "SERVER x"),
                ("S", "POSITION events m 1 1"),
                ("S-partial", "RDATA ev"),
                ("-", "eof"),
            ],
        )

    def test_records_a_line_that_is_refused(self) -> None:
        session = self.session()
        session.receive(b"SERVER x\nFOO \xff\nPING 1\n", 12.0)
        session.data_to_send()
        session.connection_lost()
        found = self.recorded()
        self.assertEqual(found[3:6], [("S", "SERVER x"), ("S", "FOO \udcff"), ("S", "PING 1")])
        self.assertEqual(found[6][0], "C")
        self.assertTrue(found[6][1].startswith("ERROR "), found[6])
        self.assertEqual(found[7:], [("-", "closed")])

    def test_records_a_note_for_a_line_that_is_too_long(self) -> None:
        session = self.session(SessionLimits(line=256))
        session.receive(b"SERVER x\n" + b"R" * 300, 12.0)
        self.assertEqual(session.closed_reason, CloseReason.LINE_TOO_LONG)
        note = "Line length exceeded: more than 256 bytes without a newline"
        self.assertEqual(self.recorded()[3:], [("S", "SERVER x"), ("-", note)])

    def test_closes_when_the_disk_is_full(self) -> None:
        session = self.session()
        with open("/dev/full", "wb") as full:
            os.dup2(full.fileno(), descriptor_of(self.file.path))
        session.receive(b"SERVER x\n", 12.0)
        self.assertTrue(session.closing)
        assert session.failure is not None
        self.assertIn("No space left", str(session.failure))
