"""One line per event."""

from __future__ import annotations

import io
import json
from typing import cast
from unittest import TestCase

from twisted.logger import ILogObserver, Logger, LogLevel
from twisted.python.failure import Failure

from synrepl.daemon.config.config import LogConfig
from synrepl.daemon.logs import MAX_MESSAGE, LineObserver


class LogLines(TestCase):
    """What :class:`LineObserver` writes."""

    def log(self, log: LogConfig) -> tuple[Logger, io.StringIO]:
        stream = io.StringIO()
        observer = cast(ILogObserver, LineObserver(log, stream))
        return Logger(namespace="here", observer=observer), stream

    def test_writes_a_text_line_per_event(self) -> None:
        stream = io.StringIO()
        LineObserver(LogConfig(), stream)(
            {
                "log_time": 1.5,
                "log_level": LogLevel.warn,
                "log_namespace": "here",
                "log_format": "{peer} is late",
                "peer": "w1",
            }
        )
        self.assertEqual(stream.getvalue(), "1970-01-01T00:00:01.500Z warn     here: w1 is late\n")

    def test_leaves_out_events_below_the_level(self) -> None:
        logger, stream = self.log(LogConfig(level="warn"))
        logger.info("no")
        logger.warn("yes")
        logger.error("yes")
        self.assertEqual(stream.getvalue().count("\n"), 2)
        self.assertNotIn("no\n", stream.getvalue())

    def test_escapes_line_breaks_in_messages(self) -> None:
        logger, stream = self.log(LogConfig())
        logger.info("got {line}", line="a\n\x1b[31mforged\r")
        self.assertEqual(stream.getvalue().count("\n"), 1)
        self.assertIn(r"a\n\x1b[31mforged\r", stream.getvalue())

    def test_writes_a_json_object_per_event(self) -> None:
        logger, stream = self.log(LogConfig(format="json"))
        logger.info("got {line}", line="a\nb\ud800")
        written = json.loads(stream.getvalue())
        self.assertEqual(written["message"], "got a\nb\\ud800")
        self.assertEqual((written["level"], written["namespace"]), ("info", "here"))
        self.assertEqual(stream.getvalue().count("\n"), 1)

    def test_a_logged_failure_includes_its_traceback(self) -> None:
        for log in (LogConfig(), LogConfig(format="json")):
            with self.subTest(log.format):
                logger, stream = self.log(log)
                logger.failure("broke", Failure(ValueError("why")))  # type: ignore[no-untyped-call]
                self.assertIn("ValueError", stream.getvalue())
        self.assertIn("why", json.loads(stream.getvalue())["traceback"])

    def test_does_not_repeat_a_traceback_that_is_in_the_message(self) -> None:
        for log in (LogConfig(), LogConfig(format="json")):
            logger, stream = self.log(log)
            logger.warn(
                "{who} fails\n{log_traceback}", who="a\nb", log_traceback="in x\n \x1bin y\n"
            )
            if log.format == "text":
                _, _, rest = stream.getvalue().partition("here: ")
                self.assertEqual(rest, "a\\nb fails\nin x\n \\x1bin y\n")
            else:
                written = json.loads(stream.getvalue())
                self.assertEqual(written["message"], "a\nb fails")
                self.assertEqual(written["traceback"], "in x\n \x1bin y\n")

    def test_long_messages_are_cut(self) -> None:
        logger, stream = self.log(LogConfig())
        logger.info("{text}", text="x" * (MAX_MESSAGE * 3))
        self.assertLess(len(stream.getvalue()), MAX_MESSAGE + 100)
