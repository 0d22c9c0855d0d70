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

#: For how long the database keeps what the lake has not got, from its last sign of life, in seconds.
LEASE_S = 7 * 86_400.0


@click.command("land")
@lake_argument
@database_options
@stream_option
@click.option(
    "--follow", is_flag=True, help="Go on until Ctrl-C or SIGTERM, also while the database is away."
)
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Seconds between two looks, with --follow.",
)
@click.option(
    "--settle-timeout",
    "settle_timeout_s",
    type=click.FloatRange(min=0),
    default=SETTLE_TIMEOUT_S,
    show_default=True,
    help="Seconds to wait, at most, until what the database has given out by now is proven to be"
    " settled. With --follow nothing waits: what takes longer is named.",
)
@click.option(
    "--accept-gap",
    "accept_gaps",
    multiple=True,
    metavar="STREAM",
    help="Go on although the database has trimmed what the lake lacks; repeatable.",
)
@click.option(
    "--name",
    default="lake",
    show_default=True,
    help="As which follower the database knows the lake: trimming waits for it.",
)
@click.option("--no-acknowledge", is_flag=True, help="Write nothing to the database at all.")
@click.option("--metrics-port", type=click.IntRange(1, 65535), help="Answer /metrics there.")
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
    """Bring what is new in a database's streams into the folder LAKE, which is made if it is not there.

    Rows and position are committed together, so nothing is lost and nothing comes
    twice, whatever is killed. Users that are to be erased, and redacted events, are
    gone from all files of the lake when it is done. Rows that do not fit their
    columns go to the lake's quarantine. Run it from cron, or with --follow.

    Exits with 1, and names the streams, when some of what the database had when it
    began is not in the lake: what is there is right, and the next run goes on from it.
    Also, once, when the database failed over and lost rows that the lake has: it keeps them.
    """
    follower = follower_name(name)
    with graceful_exit(), source_database(dsn, "lake", patience_s) as source:
        wanted = existing_streams(source, streams)
        existing_streams(source, accept_gaps)
        lake = Lake.open_or_create(path, source.server, source.is_lossy)
        # What takes time to be settled may take it while Spark starts.
        source.observe(wanted)
        metrics = LakeMetrics(metrics_port)
        with (
            lake.write_lock(),
            LandingProgress(settle_timeout_s) as progress,
            named_session(session) as spark,
            _follower(dsn, patience_s, source, follower, no_acknowledge, streams) as on_record,
        ):

            def acknowledge(upto: Vectors) -> None:
                try:
                    on_record(upto)
                except DatabaseAway:
                    # The rows are in the lake; the next round puts it on record as well.
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
    """What puts the lake's positions on record in the database, so that trimming waits for it."""
    if no_acknowledge or source.is_lossy:  # a database of somebody else's is only read
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
