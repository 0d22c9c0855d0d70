"""``synrepl rooms export``: writes the events of a room as lines of JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from synrepl.cli.conventions import config_option
from synrepl.cli.rooms.maintenance import ShownProgress, with_database
from synrepl.cli.terminal import counted, write_out
from synrepl.core.errors import InputError
from synrepl.daemon.config.config import Config
from synrepl.services.rooms.json_lines import export_room
from synrepl.services.rooms.maintenance.room_job import MaintenanceProgress
from synrepl.services.rooms.store import RoomStore
from synrepl.storage.database import Database

F = TypeVar("F", bound=Callable[..., Any])


class UnwritableOutput(InputError):
    """{path} cannot be written: {reason}; choose another file with --output"""


def output_option(command: F) -> F:
    """``--output FILE``, as ``output: Path | None``."""
    return click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        help="The file to write, instead of stdout. It is replaced once everything is written.",
    )(command)


@contextmanager
def written(path: Path | None) -> Iterator[Callable[[bytes], object]]:
    """A function that writes to a file, or to stdout.

    The file is complete or not there: it is written beside its place, and moved when all is done.

    :raises UnwritableOutput:
    """
    if path is None:
        yield write_out
        return
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file.write
        part.replace(path)
    except OSError as error:
        raise UnwritableOutput(path=path, reason=error.strerror or error) from error
    finally:
        part.unlink(missing_ok=True)


@click.command("export")
@config_option
@click.argument("room_id", metavar="ROOM")
@output_option
def command(config: tuple[Path, ...], room_id: str, output: Path | None) -> None:
    """Write the events of ROOM as lines of JSON in topological order, with the bytes that came.

    Rejected events are among them, outliers are not. Each line is compared with its checksum. The
    file can be imported by 'rooms import --file'.
    """
    with written(output) as write:

        async def work(database: Database, _: Config, progress: ShownProgress) -> int:
            total = (await RoomStore(database).room(room_id)).events
            done = 0

            def write_page(page: bytes) -> None:
                nonlocal done
                write(page)
                done += page.count(b"\n")
                progress.show(MaintenanceProgress(room_id, "exported events", done, total))

            return await export_room(database, room_id, write_page)

        count = with_database(config, work)
    if output is not None:
        click.echo(f"exported {counted(count, 'event')} to {output}", err=True)
