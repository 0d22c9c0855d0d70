"""``synrepl lake status``: the contents of a lake. Needs no Java."""

from __future__ import annotations

import click

from synrepl.cli.conventions import json_option, print_json
from synrepl.cli.lake.options import lake_argument
from synrepl.cli.terminal import counted, plain_table, show
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.storage import LakePath
from synrepl.pipeline.lake.table import StreamTable


@click.command("status")
@lake_argument
@json_option
def command(path: LakePath, as_json: bool) -> None:
    """Show the streams of the folder LAKE: rows, files, size and landed position."""
    lake = Lake(path)
    tables = [(lake.table(stream), lake.quarantine(stream)) for stream in lake.streams]
    if as_json:
        streams = {table.stream: _json(table, quarantined) for table, quarantined in tables}
        print_json({"server": lake.marker.server, "streams": streams})
        return
    empty = 0
    shown = plain_table("stream", "rows>", "quarantined>", "files>", "MiB>", "position")
    for table, quarantined in tables:
        files = table.files
        quarantined_rows = (
            0 if quarantined is None else sum(file.rows for file in quarantined.files)
        )
        if not files and not quarantined_rows:
            empty += 1
            continue
        shown.add_row(
            table.stream,
            f"{sum(file.rows for file in files):,}",
            f"{quarantined_rows:,}" if quarantined_rows else "-",
            f"{len(files):,}",
            f"{sum(file.size for file in files) / (1 << 20):,.1f}",
            str(table.position),
        )
    show(f"A lake of database {lake.marker.server}")
    if len(tables) > empty:
        show("", shown)
    if empty:
        noun = "other stream" if len(tables) > empty else "stream"
        show("", f"No rows yet in {counted(empty, noun)}.")
    if not tables:
        show("Nothing has been landed yet.")


def _json(table: StreamTable, quarantined: StreamTable | None) -> dict[str, object]:
    files = table.files
    return {
        "rows": sum(file.rows for file in files),
        "quarantined": 0 if quarantined is None else sum(file.rows for file in quarantined.files),
        "files": len(files),
        "bytes": sum(file.size for file in files),
        "position": table.position.to_json(),
        "columns": {column.name: column.type.value for column in table.stream_schema.columns},
    }
