"""The output of ``synrepl watch``: a table, JSON or metrics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import rich.console
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from rich.text import Text

from synrepl.cli.terminal import plain_table, printable
from synrepl.daemon.metric_families import Samples, counter, gauge
from synrepl.services.status.stream_progress import writer_label
from synrepl.tools.watch.lag_monitor import SilentWriter, WriterLag


@dataclass(frozen=True, slots=True)
class WatchView:
    """The state at one time.

    :ivar where: the address of the source
    :ivar dialect: the server's dialect; None while it is not known
    :ivar is_receiving: whether announcements are being received
    :ivar trouble: why nothing is received, or what could not be read in the database
    :ivar bad: the number of lines or messages that could not be parsed
    :ivar seen: position and lag of each stream and writer
    :ivar silent: writers that have not answered REPLICATE
    :ivar note: what this source cannot observe; None for nothing
    :ivar database_read: whether all of the database could be read, or none is configured
    """

    where: str
    dialect: str | None
    is_receiving: bool
    trouble: Sequence[str]
    bad: int
    seen: Sequence[WriterLag]
    silent: Sequence[SilentWriter] = ()
    note: str | None = None
    database_read: bool = True

    @property
    def alarms(self) -> list[str]:
        """All problems of the server, each as a sentence."""
        behind = [lag.alarm for lag in self.seen if lag.silent]
        return [writer.alarm for writer in self.silent] + behind

    @property
    def is_healthy(self) -> bool:
        """Whether the server is received, has no problems, and all of the database could be read."""
        return self.is_receiving and self.database_read and not self.alarms

    def to_json(self) -> dict[str, Any]:
        """As JSON, for ``--json`` and ``/status``."""
        return {
            "where": self.where,
            "dialect": self.dialect,
            "connected": self.is_receiving,
            "trouble": list(self.trouble),
            "bad": self.bad,
            "alarms": self.alarms,
            "silent_writers": [writer.to_json() for writer in self.silent],
            "note": self.note,
            "database_read": self.database_read,
            "streams": [lag.to_json() for lag in self.seen],
        }

    def table(self) -> rich.console.Group:
        """As a table, for a terminal."""
        table = plain_table(
            "stream", "writer", "wire>", "database>", "rows>", "rows/s>", "lag rows>", "lag>"
        )
        # Those with an alarm come first, in case the terminal is too short for all.
        for lag in sorted(self.seen, key=lambda lag: not lag.silent):
            late = "red" if lag.silent else ""
            table.add_row(
                Text(printable(lag.stream)),
                Text(printable(writer_label(lag.writer))),
                Text(_number(lag.heard)),
                Text(_number(lag.committed)),
                Text(f"{lag.rows:,}"),
                Text(f"{lag.rate:,.1f}"),
                Text(f"{lag.lag_rows:,}", late),
                Text(f"{lag.lag_seconds:.1f} s", late),
            )
        state = f"dialect {self.dialect}" if self.is_receiving else "nothing heard"
        return rich.console.Group(
            Text(f"{self.where}, {state}", style="bold"),
            *(Text(printable(text), style="yellow") for text in self.trouble),
            *(Text(printable(text), style="red") for text in self.alarms),
            *([] if self.note is None else [Text(self.note, style="dim")]),
            Text(),
            table if table.row_count else Text("nothing heard yet", style="dim"),
        )

    def metrics(self) -> tuple[bytes, str]:
        """In Prometheus's text format, with its content type."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_WatchCollector(self))
        return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


class _WatchCollector(Collector):
    def __init__(self, view: WatchView) -> None:
        self._view = view

    def collect(self) -> Iterable[Metric]:
        view = self._view
        yield gauge(
            "watch_connected", "1 while the server is received from.", float(view.is_receiving)
        )
        yield counter(
            "watch_bad_lines", "Lines or messages that could not be parsed.", float(view.bad)
        )
        unanswered = [((writer.writer,), writer.seconds) for writer in view.silent]
        meaning = "Seconds for which a writer has not answered REPLICATE."
        yield gauge("watch_writer_unanswered_seconds", meaning, unanswered, "writer")
        for name, meaning, samples in (
            ("wire_position", "Announced position.", self._of("heard")),
            ("database_position", "Committed position.", self._of("committed")),
            ("lag_rows", "Committed tokens that are not announced, at most.", self._of("lag_rows")),
            (
                "lag_seconds",
                "Age of the oldest committed token that is not announced.",
                self._of("lag_seconds"),
            ),
            ("silent", "1 when the lag raises an alarm.", self._of("silent")),
        ):
            yield gauge(f"watch_{name}", meaning, samples, "stream", "writer")
        yield counter("watch_rows", "Rows on the wire.", self._of("rows"), "stream", "writer")

    def _of(self, name: str) -> Samples:
        return [
            ((lag.stream, writer_label(lag.writer)), float(value))
            for lag in self._view.seen
            if (value := getattr(lag, name)) is not None
        ]


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
