"""The rendering of ``synrepl watch``."""

from __future__ import annotations

from unittest import TestCase

import rich.console

from synrepl.cli.watch.view import WatchView
from synrepl.tools.watch.lag_monitor import WriterLag

WELL = WriterLag("events", "w1", 5, 5, 3, 1.5, 0, 0.0, False)
SILENT = WriterLag("receipts", "w2", None, 1234, 0, 0.0, 7, 6.2, True)
IN_MEMORY = WriterLag("typing", "", 1, None, 0, 0.0, 0, 0.0, False)


class WatchViewTable(TestCase):
    def lines(self, view: WatchView) -> list[str]:
        console = rich.console.Console(width=120, highlight=False)
        with console.capture() as captured:
            console.print(view.table())
        return [line.rstrip() for line in captured.get().splitlines()]

    def test_shows_a_table(self) -> None:
        view = WatchView("here", "current", True, ["trouble\x1b"], 0, [WELL, SILENT, IN_MEMORY])
        self.assertEqual(
            self.lines(view),
            """\
here, dialect current
trouble\\x1b
receipts of w2 is at 1234 in the database and has not been heard of, for 6 s

stream    writer  wire  database  rows  rows/s  lag rows    lag
receipts  w2         -     1,234     0     0.0         7  6.2 s
events    w1         5         5     3     1.5         0  0.0 s
typing    (all)      1         -     0     0.0         0  0.0 s""".splitlines(),
        )

    def test_shows_that_nothing_was_heard(self) -> None:
        view = WatchView("here", None, False, [], 0, [])
        self.assertEqual(self.lines(view), ["here, nothing heard", "", "nothing heard yet"])

    def test_renders_metrics_of_the_watched_streams(self) -> None:
        body, _ = WatchView("here", "current", True, [], 3, [WELL, SILENT]).metrics()
        lines = body.decode().splitlines()
        for line in (
            "synrepl_watch_connected 1.0",
            "synrepl_watch_bad_lines_total 3.0",
            'synrepl_watch_wire_position{stream="events",writer="w1"} 5.0',
            'synrepl_watch_database_position{stream="receipts",writer="w2"} 1234.0',
            'synrepl_watch_silent{stream="receipts",writer="w2"} 1.0',
        ):
            self.assertIn(line, lines)
        self.assertFalse(any("wire_position" in line and "w2" in line for line in lines))
