"""``synrepl rooms purge``: removes the history of a room before a point."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from synrepl.cli.conventions import config_option, json_option, print_json
from synrepl.cli.rooms.maintenance import (
    ShownProgress,
    size,
    with_database,
    without_index_check_option,
)
from synrepl.cli.terminal import plain_table, show
from synrepl.daemon.config.config import Config
from synrepl.daemon.exit_codes import EXIT_FAILED
from synrepl.services.rooms.maintenance.maintenance import PurgeReport, RoomMaintenance
from synrepl.storage.database import Database
from synrepl.storage.rooms.maintenance.purge import PurgePlan
from synrepl.storage.rooms.maintenance.purge_point import PurgePoint


@click.command("purge")
@config_option
@click.argument("room_id", metavar="ROOM")
@click.option("--before-event", metavar="EVENT", help="Remove what is before this event.")
@click.option("--before-topological", type=int, help="Remove what is before this depth.")
@click.option("--before-stream", type=int, help="Remove what came before this stream ID.")
@click.option("--plan", "only_plan", is_flag=True, help="Only show what would be removed.")
@without_index_check_option
@json_option
def command(
    config: tuple[Path, ...],
    room_id: str,
    before_event: str | None,
    before_topological: int | None,
    before_stream: int | None,
    only_plan: bool,
    index_check: bool,
    as_json: bool,
) -> None:
    """Remove the history of ROOM before a point, in short transactions.

    State events that states after the point have stay as outliers, and so do their auth events.
    Other servers can be asked for the history again. A purge that was interrupted is gone on with
    by the same command. The exit code is 1 if something is left that should have gone.
    """
    points = [before_event, before_topological, before_stream]
    if sum(each is not None for each in points) != 1:
        raise click.UsageError(
            "give one of --before-event, --before-topological and --before-stream"
        )

    async def work(
        database: Database, _: Config, progress: ShownProgress
    ) -> tuple[PurgePlan, PurgeReport | None]:
        maintenance = RoomMaintenance(database)
        if before_event is not None:
            point = await maintenance.purge_point(room_id, before_event)
        elif before_topological is not None:
            point = PurgePoint.of_topological(before_topological)
        else:
            assert before_stream is not None
            point = PurgePoint.of_stream(before_stream)
        if only_plan:
            return await maintenance.plan_purge(room_id, point), None
        report = await maintenance.purge(
            room_id, point, index_check=index_check, progress=progress.show
        )
        return report.plan, report

    plan, report = with_database(config, work)
    if as_json:
        print_json(_to_json(room_id, plan, report))
    else:
        _print(plan, report)
    if report is not None and any(report.leftovers.values()):
        sys.exit(EXIT_FAILED)


def _to_json(room_id: str, plan: PurgePlan, report: PurgeReport | None) -> dict[str, object]:
    planned = {**plan._asdict(), "rows": plan.rows, "bytes": plan.bytes}
    found: dict[str, object] = {"room_id": room_id, "plan": planned}
    if report is not None:
        found |= {
            "events": report.events,
            "outliers": report.outliers,
            "rows": report.rows,
            "leftovers": dict(report.leftovers),
            "lock": report.locks.to_json(),
        }
    return found


def _print(plan: PurgePlan, report: PurgeReport | None) -> None:
    table = plain_table("at most", "events>", "state events>", "state groups>", "rows>", "size>")
    table.add_row(
        "",
        f"{plan.events:,}",
        f"{plan.state_events:,}",
        f"{plan.groups:,}",
        f"{plan.rows:,}",
        size(plan.bytes),
    )
    show(table)
    if report is None:
        return
    left = ", ".join(f"{count:,} {name}" for name, count in report.leftovers.items() if count)
    show(
        f"{report.rows:,} rows removed, with {report.events:,} events;"
        f" {report.outliers:,} events stay as outliers.",
        report.locks.sentence(),
        f"Left over: {left}." if left else "Nothing is left over.",
    )
