"""``synrepl lake land``: lands new facts in the lake."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from synrepl.cli.conventions import json_option
from synrepl.cli.lake.follow import StuckStreams, poll_forever
from synrepl.cli.lake.graceful_exit import graceful_exit
from synrepl.cli.lake.maintenance import check_all_landed, check_nothing_lost, print_report
from synrepl.cli.lake.options import (
    database_options,
    lake_argument,
    selected_streams,
    session_options,
    stream_option,
)
from synrepl.cli.lake.progress import LandingProgress
from synrepl.cli.lake.source_database import existing_streams, source_database
from synrepl.core.names import follower_name
from synrepl.daemon.metrics.lake import LakeMetrics
from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.land.landing import LandingRound, Vectors
from synrepl.pipeline.lake.maintenance import LakeMaintenance, MaintenanceReport
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import named_session
from synrepl.pipeline.source.database.settlement import SETTLE_TIMEOUT_S
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.plan.offset import Offset
from synrepl.pipeline.source.query_follower import QueryFollower
from synrepl.storage.store import DatabaseAway

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
@session_options
@json_option
def command(
    path: Path,
    dsn: str,
    patience_s: float,
    streams: tuple[str, ...],
    follow: bool,
    every: float,
    settle_timeout_s: float,
    accept_gaps: tuple[str, ...],
    name: str,
    no_acknowledge: bool,
    metrics_port: int | None,
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
            named_session(session) as spark,
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

            maintenance = LakeMaintenance(
                spark, lake, source, dsn, accept_gaps=accept_gaps, acknowledge=acknowledge
            )

            def on_round(landed: LandingRound) -> None:
                progress.landed(landed)
                metrics.landed(landed)

            def run(wait_s: float = 0.0) -> MaintenanceReport:
                begun = time.monotonic()
                report = maintenance.run(wanted, on_round, wait_s)
                metrics.ran(time.monotonic() - begun)
                return report

            if not follow:
                report = run(settle_timeout_s)
                print_report(report, as_json)
                check_all_landed(report, everything=not streams)
                check_nothing_lost(report)
                return
            stuck = StuckStreams(settle_timeout_s)
            for report in poll_forever(run, every):
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
    follower = QueryFollower(database, name, list(streams) or None, LEASE_S)

    def acknowledge(upto: Vectors) -> None:
        follower.acknowledge(Offset(source.server, upto))

    try:
        follower.renew_lease()
        yield acknowledge
    finally:
        follower.close()
