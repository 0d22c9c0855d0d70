"""``synrepl lake land``: lands new facts in the lake."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from synrepl.cli.conventions import json_option
from synrepl.cli.lake.maintenance import check_all_landed, check_nothing_lost, print_report
from synrepl.cli.lake.options import (
    database_options,
    existing_streams,
    lake_argument,
    retention_option,
    selected_streams,
    session_options,
    source_database,
    stream_option,
)
from synrepl.cli.terminal import graceful_exit
from synrepl.core.names import follower_name
from synrepl.daemon.metrics.lake import LakeMetrics
from synrepl.driver.blocking import BlockingDatabase
from synrepl.driver.connection import DatabaseRefused
from synrepl.pipeline.lake.data_files import FolderNotShared
from synrepl.pipeline.lake.erase.erasure_record import ErasureRecordUnreadable
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.land.landing import FailedOver, LandingRound, Vectors
from synrepl.pipeline.lake.maintenance import LakeMaintenance, MaintenanceReport
from synrepl.pipeline.lake.on_demand import ROWS_HERE, SessionOnDemand
from synrepl.pipeline.lake.storage import LakePath
from synrepl.pipeline.lake.table_log import LakeFailed
from synrepl.pipeline.session.on_demand import session_on_demand
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.restarting import RestartingSession, SparkLost
from synrepl.pipeline.source.database.settlement import SETTLE_TIMEOUT_S
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.plan.offset import Offset
from synrepl.pipeline.source.query_follower import QueryFollower
from synrepl.pipeline.source.reading.chunk_reader import ReadingAway
from synrepl.positions.vector import PositionVector
from synrepl.storage.store import DatabaseAway, NotConfirmed, OlderServer

#: How long the database keeps rows that the lake lacks, after its last heartbeat, in seconds.
LEASE_S = 7 * 86_400.0


@click.command("land")
@lake_argument
@database_options
@stream_option
@click.option(
    "--follow",
    is_flag=True,
    help="Land repeatedly until Ctrl-C or SIGTERM, even if the database is unreachable for a while.",
)
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="With --follow: seconds from one landing to the next.",
)
@click.option(
    "--settle-timeout",
    "settle_timeout_s",
    type=click.FloatRange(min=0),
    default=SETTLE_TIMEOUT_S,
    show_default=True,
    help="Maximum seconds to wait until the tokens given out by now are settled. With --follow,"
    " landing does not wait; streams that take longer are reported.",
)
@click.option(
    "--accept-gap",
    "accept_gaps",
    multiple=True,
    metavar="STREAM",
    help="Continue although the database has trimmed rows that the lake lacks; repeatable.",
)
@click.option(
    "--spark-above",
    "rows_here",
    type=click.IntRange(min=0),
    metavar="ROWS",
    default=ROWS_HERE,
    show_default=True,
    help="Use Spark only for work on more rows than this; with fewer, this process lands, erases and"
    " compacts itself.",
)
@click.option(
    "--name",
    default="lake",
    show_default=True,
    help="Name of the lake as a follower of the database: trimming waits for it.",
)
@click.option(
    "--no-acknowledge",
    is_flag=True,
    help="Write nothing to the database; trimming does not wait for the lake.",
)
@click.option(
    "--metrics-port", type=click.IntRange(1, 65535), help="Port of an HTTP listener for /metrics."
)
@retention_option
@session_options
@json_option
def command(
    path: LakePath,
    dsn: str,
    patience_s: float,
    streams: tuple[str, ...],
    follow: bool,
    every: float,
    settle_timeout_s: float,
    accept_gaps: tuple[str, ...],
    rows_here: int,
    name: str,
    no_acknowledge: bool,
    metrics_port: int | None,
    retention_hours: int | None,
    session: SessionOptions,
    as_json: bool,
) -> None:
    """Land new rows of a database's streams in the folder LAKE, which is created if needed.

    Rows and position are committed together, so no row is lost or landed twice, no
    matter what is killed. Users to be erased, and redacted events, are removed from
    all files of the lake before the command ends. Rows that do not fit their columns
    are quarantined. Run it from cron, or with --follow.

    The exit code is 1, and the streams are named, if not all rows that the database
    had at the start could be landed; the next run continues from there. It is also 1,
    once, after a failover in which the database lost rows that the lake has; the lake
    keeps them.
    """
    follower = follower_name(name)
    with graceful_exit(), source_database(dsn, "lake", patience_s) as source:
        wanted = existing_streams(source, streams)
        existing_streams(source, accept_gaps)
        lake = Lake.open_or_create(path, source.server, source.is_lossy)
        # Streams can settle while Spark starts.
        source.observe(wanted)
        metrics = LakeMetrics(metrics_port)
        with (
            lake.write_lock(),
            LandingProgress(settle_timeout_s) as progress,
            _follower(
                dsn, patience_s, source, follower, no_acknowledge, streams
            ) as acknowledge_in_database,
        ):

            def acknowledge(upto: Vectors) -> None:
                try:
                    acknowledge_in_database(upto)
                except DatabaseAway:
                    # The rows are in the lake; the next round acknowledges them, too.
                    if not follow:
                        raise

            def maintenance_on(spark: SessionOnDemand) -> LakeMaintenance:
                return LakeMaintenance(
                    spark,
                    lake,
                    source,
                    dsn,
                    accept_gaps=accept_gaps,
                    acknowledge=acknowledge,
                    retention_hours=retention_hours,
                )

            def on_round(landed: LandingRound) -> None:
                progress.landed(landed)
                metrics.landed(landed)

            if not follow:
                with session_on_demand(session, rows_here) as spark:
                    report = maintenance_on(spark).run(wanted, on_round, settle_timeout_s)
                print_report(report, as_json)
                check_all_landed(report, everything=not streams)
                check_nothing_lost(report)
                return
            stuck = StuckStreams(settle_timeout_s)
            with RestartingSession(session, maintenance_on, rows_here) as restarting:

                def run() -> MaintenanceReport:
                    begun = time.monotonic()
                    report = restarting.call(lambda each: each.run(wanted, on_round))
                    metrics.ran(time.monotonic() - begun)
                    return report

                for report in poll_forever(run, every, retry_store=lake.is_shared):
                    print_report(report, as_json, following=True)
                    stuck.update(report, time.monotonic())
                    wanted = selected_streams(streams, source.streams)


@contextmanager
def _follower(
    dsn: str,
    patience_s: float,
    source: SourceDatabase,
    name: str,
    no_acknowledge: bool,
    streams: Sequence[str],
) -> Iterator[Any]:
    """Yield a function that acknowledges the lake's positions, so that trimming waits for it."""
    if no_acknowledge or source.is_lossy:  # a foreign database is only read
        yield lambda upto: None
        return
    database = BlockingDatabase(dsn, "lake", patience_s)
    follower = QueryFollower(database, name, list(streams) or None, LEASE_S, source.whole_events)

    def acknowledge(upto: Vectors) -> None:
        follower.acknowledge(Offset(source.server, upto))

    try:
        follower.renew_lease()
        yield acknowledge
    finally:
        follower.close()


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
    run: Callable[[], MaintenanceReport], every_s: float, *, retry_store: bool = False
) -> Iterator[MaintenanceReport]:
    """Run forever, and yield the report of each run.

    A database that is unreachable, or whose server is not confirmed after a failover, is reported
    once and retried with every run. So is Spark, each time that it is lost. Errors that do not pass
    with time are raised.

    :param every_s: the minimum time from the start of one run to the start of the next, in seconds
    :param retry_store: the lake is in an object store, which may be unreachable for a while, too
    :raises DatabaseRefused: and what else ``run`` raises
    """
    away = False
    store_errors = (LakeFailed, ErasureRecordUnreadable, FolderNotShared) if retry_store else ()
    while True:
        begun = time.monotonic()
        try:
            report = run()
        except DatabaseRefused:
            raise
        except FailedOver:
            pass  # the next run looks again
        except SparkLost as error:
            click.echo(f"synrepl: {error}; it is started again", err=True)
        except (DatabaseAway, ReadingAway, NotConfirmed, OlderServer, *store_errors) as error:
            if not away:
                click.echo(f"synrepl: {error}; landing goes on when it is back", err=True)
            away = True
        else:
            if away:
                click.echo("synrepl: the database is back", err=True)
            away = False
            yield report
        time.sleep(max(0.0, every_s - (time.monotonic() - begun)))


class LandingProgress:
    """Shows rows landed, their rate, and what is left, on stderr.

    :param settle_timeout_s: how long a run waits until streams are settled, in seconds
    """

    def __init__(self, settle_timeout_s: float) -> None:
        self._timeout_s = settle_timeout_s
        console = Console(stderr=True, highlight=False)
        self._rows = 0
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn(
                "{task.completed:,} rows landed, {task.fields[rate]} rows/s, {task.fields[left]}"
            ),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("landing", total=None, rate="-", left="starting Spark")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def landed(self, landed: LandingRound) -> None:
        """Show the result of a round."""
        rows = landed.rows.total()
        self._rows += rows
        speed = self._progress.tasks[self._task].speed
        self._progress.update(
            self._task,
            completed=self._rows,
            rate="-" if speed is None else f"{speed:,.0f}",
            left=self._left(landed),
        )

    def _left(self, landed: LandingRound) -> str:
        if tokens := sum(landed.behind.values()):
            return f"{tokens:,} tokens left"
        if streams := len(landed.unsettled):
            return f"waiting until {streams:,} streams are settled, {self._timeout_s:g} s at most"
        return "up to date"
