"""Logs and metrics of real servers, and the report."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import TestCase

from interop import logs, metrics
from interop.report import Section, Table, render

LOG = """\
2026-11-20 12:16:44,512 synapse.replication.tcp.protocol:731 INFO [anon-sBZcB] Subscribing to replication stream: 'caches' from 3
2026-11-20 12:27:09,320 synapse.app.synchrotron:434 ERROR Error processing replication
Traceback (most recent call last):
  File "x.py", line 387, in process_and_notify
synapse.api.errors.NotFoundError: 404: Could not find event $event1:interop.example
2026-11-20 12:27:09,769 synapse.replication.tcp.handler:276 ERROR Failed to handle command <x at 0x7f56fb9d4ac0>
Traceback (most recent call last):
Exception: Instance 'sql' not in 'instance_map' config
2026-11-20 12:30:00,001 stderr:1 ERROR Traceback (most recent call last):
2026-11-20 12:30:00,001 stderr:1 ERROR   File "x.py", line 387, in collect
2026-11-20 12:30:00,001 stderr:1 ERROR     for hook in hooks.values():
2026-11-20 12:30:00,001 stderr:1 ERROR RuntimeError: dictionary changed size during iteration
2026-11-20 12:30:00,002 stderr:1 ERROR something else
2026-11-20 12:35:06,847 synapse.replication.tcp.handler:478 DEBUG Discarding RDATA from stream typing at position 15 before previous position 20
2026-11-20 12:35:06,848 synapse.replication.tcp.handler:470 DEBUG Discarding RDATA for unconnected stream typing -> 1
"""

METRICS = """\
# TYPE inbound counter
inbound{command="PING",name="a"} 1.0
inbound_total{command="PING",name="a"} 39.0
inbound_total{command="PING",name="b}"} 2.0
inbound_total{command="POSITION",name="a"} 32.0
inbound_created{command="PING",name="a"} 1.7951769983133159e+09
older{stream_name="events"} 7.0
"""


class Output(TestCase):
    """Each finds what it is for."""

    def test_reads_entries_and_errors_of_logs(self) -> None:
        with TemporaryDirectory() as directory:
            log = Path(directory, "log")
            log.write_text(LOG)
            self.assertEqual(logs.subscriptions(log), [("caches", 3)])
            self.assertEqual(logs.discarded(log), {"typing": 2})
            _, expected, unexpected, printed, other, *_ = logs.entries(log)
        self.assertTrue(expected.is_error and unexpected.is_error)
        self.assertIsNotNone(expected.reason)
        self.assertIsNone(unexpected.reason)
        self.assertEqual(printed.cause, "RuntimeError: dictionary changed size during iteration")
        self.assertIsNotNone(printed.reason)
        self.assertEqual((other.message, other.reason), ("something else", None))
        self.assertEqual(
            unexpected.kind,
            "Failed to handle command <x at 0x…>: Exception: Instance '…' not in '…' config",
        )

    def test_sums_counters_by_label(self) -> None:
        found = metrics.counter(METRICS, "inbound", "command")
        self.assertEqual(found, Counter(PING=41, POSITION=32))
        self.assertEqual(metrics.counter(METRICS, "older", "stream_name"), Counter(events=7))
        self.assertEqual(metrics.counter(METRICS, "none", "x"), Counter())

    def test_renders_sections_as_markdown(self) -> None:
        section = Section("Title", ["Story."])
        section.tables.append(("Caption:", Table(("name", "n"), [("a|b", 5), ("c", 12)])))
        section.check("this holds", True)
        self.assertTrue(section.holds)
        section.check("that does not", False, "a reason")
        self.assertFalse(section.holds)
        text = render({"date": "today"}, [section])
        self.assertIn("| name |  n |\n| ---- | -: |\n| a\\|b |  5 |\n| c    | 12 |\n", text)
        self.assertIn("- date: today\n", text)
        self.assertIn("- yes: this holds\n- **NO**: that does not: a reason\n", text)
