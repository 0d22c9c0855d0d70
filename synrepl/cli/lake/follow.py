"""Repeated landing for ``--follow``, which survives an unreachable database."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import click

from synrepl.driver.connection import DatabaseRefused
from synrepl.pipeline.lake.land.landing import FailedOver
from synrepl.pipeline.lake.maintenance import MaintenanceReport
from synrepl.pipeline.source.reading.chunk_reader import ReadingAway
from synrepl.positions.vector import PositionVector
from synrepl.storage.store import DatabaseAway, NotConfirmed, OlderServer


class StuckStreams:
    """Reports, once per stream, that landing cannot keep up because a stream does not settle.

    :param after_s: how long a stream may make no progress before it is reported, in seconds
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._since: dict[str, tuple[PositionVector, float]] = {}
        self._reported: set[str] = set()

    def update(self, report: MaintenanceReport, now: float) -> None:
        """Process the report of a run.

        :param now: when the run ended, in seconds of a monotonic clock
        """
        since = {}
        for stream, state in report.unsettled.items():
            settled, begun = self._since.get(stream, (state.settled, now))
            since[stream] = (state.settled, begun if settled == state.settled else now)
            if now - since[stream][1] >= self._after_s:
                self._report(stream, f"not settled for {self._after_s:g} s: {state}")
        self._since = since
        for stream, why in report.left_out.items():
            self._report(stream, why)
        for stream in sorted(self._reported - since.keys() - report.left_out.keys()):
            click.echo(f"synrepl: stream {stream!r} is settled again", err=True)
            self._reported.discard(stream)

    def _report(self, stream: str, words: str) -> None:
        if stream not in self._reported:
            click.echo(f"synrepl: {words}; landing goes on with the rest", err=True)
            self._reported.add(stream)


def poll_forever(
    run: Callable[[], MaintenanceReport], every_s: float
) -> Iterator[MaintenanceReport]:
    """Run forever, and yield the report of each run.

    A database that is unreachable, or whose server is not confirmed after a failover, is reported
    once and retried with every run. Errors that do not pass with time are raised.

    :param every_s: the minimum time from the start of one run to the start of the next, in seconds
    :raises DatabaseRefused: and what else ``run`` raises
    """
    away = False
    while True:
        begun = time.monotonic()
        try:
            report = run()
        except DatabaseRefused:
            raise
        except FailedOver:
            pass  # the next run looks again
        except (DatabaseAway, ReadingAway, NotConfirmed, OlderServer) as error:
            if not away:
                click.echo(f"synrepl: {error}; landing goes on when it is back", err=True)
            away = True
        else:
            if away:
                click.echo("synrepl: the database is back", err=True)
            away = False
            yield report
        time.sleep(max(0.0, every_s - (time.monotonic() - begun)))
