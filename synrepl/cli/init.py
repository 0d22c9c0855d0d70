"""``synrepl init``: write a configuration that runs unchanged."""

from __future__ import annotations

import os
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TypeGuard

import click
import yaml

from synrepl.core import jsons, names
from synrepl.core.errors import ConfigError, InputError, Refused
from synrepl.daemon.config.yaml import parse_yaml
from synrepl.storage.launch.data_dir import can_enter
from synrepl.storage.launch.postgres import account_for
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.declared import declare
from synrepl.streams.definition import Stream
from synrepl.streams.synapse import SYNAPSE_STREAMS

TEMPLATES = ("master.yaml", "worker.yaml")

#: Not Synapse's 9092 and 9093, so that both can run on one machine.
DEFAULT_REPLICATION_PORT = 9392
DEFAULT_HTTP_PORT = 9393
DEFAULT_WORKER_HTTP_PORT = 9394

#: The built-in stream that everyone needs: it carries cache invalidations.
CACHES = "caches"

EXAMPLE_STREAM = "orders: {order_id: text, total: bigint}"

#: Parent of the data directories when the command runs as root and PostgreSQL's user cannot enter
#: DIRECTORY.
SYSTEM_DATA = Path("/var/lib/synrepl")


class AlreadyThere(Refused):
    """{path} exists already; nothing was written. Name another directory, or remove it first"""


class DataThere(Refused):
    """{path} exists already, and PostgreSQL's user {user} cannot enter {directory}; nothing was written. Name a folder for the data with --data-dir, or a DIRECTORY below one that every user may enter"""


class CannotWrite(InputError):
    """{path} cannot be written: {reason}"""


class DataDirClosed(ConfigError):
    """user {user} cannot enter {path}, and PostgreSQL runs as that user because it refuses to run as root; name a --data-dir below a folder that every user may enter, such as /var/lib"""


class BadStreamOption(ConfigError):
    """--stream {text!r}: {reason}; write it like --stream {example!r}"""

    def __init__(self, *, text: str, reason: object, example: object = EXAMPLE_STREAM) -> None:
        super().__init__(text=text, reason=reason, example=example)


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """The directory of the embedded database.

    :ivar path: as written in the configuration
    :ivar user: the user that PostgreSQL runs as
    :ivar instead_of: the default directory, where ``user`` cannot enter it; otherwise None
    """

    path: Path
    user: str
    instead_of: Path | None = None


_PORT = click.IntRange(1, 65535)


@click.command("init")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--server-name", required=True, help="Name of this server, such as example.com.")
@click.option(
    "--stream",
    "streams",
    multiple=True,
    metavar="'NAME: {COLUMN: TYPE, ...}'",
    help=f"Declare a stream, such as {EXAMPLE_STREAM!r}; repeatable.",
)
@click.option(
    "--synapse",
    is_flag=True,
    help="Serve Synapse's streams too, for workers of a Matrix server. Default: the streams that"
    f" you declare, and {CACHES!r}, which carries cache invalidations.",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the embedded PostgreSQL. Default: DIRECTORY/data; for root, where"
    f" PostgreSQL's user cannot enter it, {SYSTEM_DATA}/SERVER_NAME.",
)
@click.option(
    "--replication-port",
    type=_PORT,
    default=DEFAULT_REPLICATION_PORT,
    show_default=True,
    help="Port on which workers connect to the master.",
)
@click.option(
    "--http-port",
    type=_PORT,
    default=DEFAULT_HTTP_PORT,
    show_default=True,
    help="Port of the master's HTTP listener.",
)
@click.option(
    "--worker-http-port",
    type=_PORT,
    default=DEFAULT_WORKER_HTTP_PORT,
    show_default=True,
    help="Port of the worker's HTTP listener.",
)
def command(
    directory: Path,
    server_name: str,
    streams: tuple[str, ...],
    synapse: bool,
    data_dir: Path | None,
    replication_port: int,
    http_port: int,
    worker_http_port: int,
) -> None:
    """Write DIRECTORY/master.yaml and DIRECTORY/worker.yaml.

    They use an embedded PostgreSQL under DIRECTORY/data and need nothing else.
    """
    if http_port == replication_port:
        raise click.BadParameter("must differ from --replication-port", param_hint="--http-port")
    if worker_http_port in (replication_port, http_port):
        raise click.BadParameter(
            "must differ from --replication-port and --http-port", param_hint="--worker-http-port"
        )
    names.server_name(server_name)
    built_in = [stream for stream in SYNAPSE_STREAMS if synapse or stream.name == CACHES]
    settings = {
        "server_name": server_name,
        "streams": declared_streams(streams, built_in),
        "catalogue": "all" if synapse else f"[{CACHES}]",
        "replication_port": replication_port,
        "http_port": http_port,
        "worker_http_port": worker_http_port,
    }
    data = choose_data_directory(directory, server_name, data_dir)
    written = write_configuration(directory, data, settings)
    for path in written:
        click.echo(f"wrote {path}")
    if data.instead_of is not None:
        click.echo(
            f"data goes to {data.path}: PostgreSQL does not run as root, and its user {data.user}"
            f" cannot enter {data.instead_of}"
        )
    click.echo(f"next: synrepl check-config -c {written[0]}")


def declared_streams(options: Iterable[str], built_in: Iterable[Stream]) -> str:
    """The value of ``streams`` in the configuration, as YAML.

    :param options: each ``NAME: {COLUMN: TYPE, ...}``
    :param built_in: streams whose names are taken
    :raises BadStreamOption: an option cannot be read, or the stream cannot be declared
    """
    declared: list[Stream] = []
    section = []
    for text in options:
        parsed = parse_yaml(text.encode())
        for problem in parsed.problems:
            raise BadStreamOption(text=text, reason=problem.reason)
        for name, columns in parsed.content.items():
            if not _is_columns(columns):
                raise BadStreamOption(text=text, reason="columns must map names to types")
            try:
                declared.append(declare(name, columns))
                Catalogue((*built_in, *declared))
            except InputError as error:
                raise BadStreamOption(text=text, reason=error) from None
            section.append({"name": name, "columns": columns})
    dumped = yaml.safe_dump(section, default_flow_style=True, sort_keys=False, width=10_000)
    return dumped.strip()


def _is_columns(value: object) -> TypeGuard[dict[str, str]]:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(cell, str) for item in value.items() for cell in item)
    )


def choose_data_directory(directory: Path, server_name: str, wanted: Path | None) -> DataDirectory:
    """Choose a data directory that PostgreSQL's user can enter.

    :param wanted: the directory to use; None for the default, or the system-wide one for root
    :raises DataDirClosed: PostgreSQL's user cannot enter ``wanted`` or the system-wide directory
    :raises DataThere: it cannot enter the default directory, and the system-wide one exists
    """
    path = (wanted or directory / "data").absolute()
    account = account_for(path)
    if os.geteuid() != 0 or can_enter(account, path.parent):  # its own mode is set later
        return DataDirectory(Path("data") if wanted is None else path, account.name)
    if wanted is not None:
        raise DataDirClosed(user=account.name, path=path.parent)
    system = SYSTEM_DATA / server_name
    if not can_enter(account, SYSTEM_DATA):
        raise DataDirClosed(user=account.name, path=SYSTEM_DATA)
    if system.exists():
        raise DataThere(path=system, user=account.name, directory=path.parent)
    return DataDirectory(system, account.name, instead_of=path.parent)


def write_configuration(
    directory: Path, data_directory: DataDirectory, settings: Mapping[str, object]
) -> list[Path]:
    """Fill in the templates; missing directories are created.

    :param settings: values of the templates' placeholders
    :returns: the files written, the master's first
    :raises AlreadyThere: one of the files exists; nothing is written
    :raises CannotWrite: a directory or file cannot be created
    """
    data_dir = jsons.encode(str(data_directory.path)).decode()
    paths = [directory / name for name in TEMPLATES]
    for path in paths:
        if path.exists():
            raise AlreadyThere(path=path)
    templates = resources.files("synrepl.cli") / "templates"
    try:
        data = directory / data_directory.path
        _make(directory)
        _make(data.parent)
        data.mkdir(mode=0o700, exist_ok=True)
        for path in paths:
            text = (templates / path.name).read_text(encoding="utf-8")
            _write(path, string.Template(text).substitute(settings, data_dir=data_dir))
    except OSError as error:
        raise CannotWrite(path=error.filename or directory, reason=error.strerror) from None
    return paths


def _make(directory: Path) -> None:
    """Make a directory and its parents; those that root makes can be entered by PostgreSQL's user."""
    for path in (*reversed(directory.absolute().parents), directory):
        if not path.is_dir():
            path.mkdir()
            if os.geteuid() == 0:
                path.chmod(path.stat().st_mode | 0o011)


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise AlreadyThere(path=path) from None
