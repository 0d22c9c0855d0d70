"""``synrepl init``: write a configuration that runs as it is."""

from __future__ import annotations

import os
import string
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import click

from synrepl.core import jsons, names
from synrepl.core.errors import ConfigError, InputError, Refused
from synrepl.storage.launch.data_dir import can_enter
from synrepl.storage.launch.postgres import account_for

TEMPLATES = ("master.yaml", "worker.yaml")

#: Not Synapse's 9092 and 9093, so that both can run on one machine.
DEFAULT_REPLICATION_PORT = 9392
DEFAULT_HTTP_PORT = 9393

#: Where root's data goes when PostgreSQL, which does not run as root, cannot enter DIRECTORY.
SYSTEM_DATA = Path("/var/lib/synrepl")


class AlreadyThere(Refused):
    """{path} exists already; nothing was written. Name another directory, or remove it first"""


class DataThere(Refused):
    """{path} exists already, and user {user}, as whom PostgreSQL runs, cannot enter {directory}; nothing was written. Name a folder for the data with --data-dir, or a DIRECTORY below one that every user may enter"""


class CannotWrite(InputError):
    """{path} cannot be written: {reason}"""


class DataDirClosed(ConfigError):
    """user {user} cannot enter {path}, and PostgreSQL runs as that user, for it refuses to run as root; name a --data-dir below a folder that every user may enter, such as /var/lib"""


@dataclass(frozen=True, slots=True)
class DataPlace:
    """Where the embedded database is to be.

    :ivar path: as it stands in the configuration
    :ivar instead_of: the usual place, when that one will not do
    :ivar user: whom PostgreSQL runs as
    """

    path: Path
    user: str
    instead_of: Path | None = None


@click.command("init")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--server-name", required=True, help="Name of this server, such as example.com.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the embedded PostgreSQL. Default: DIRECTORY/data; for root, when PostgreSQL's"
    f" user cannot enter that, {SYSTEM_DATA}/NAME.",
)
@click.option(
    "--replication-port",
    type=click.IntRange(1, 65535),
    default=DEFAULT_REPLICATION_PORT,
    show_default=True,
    help="Port on which workers connect.",
)
@click.option(
    "--http-port",
    type=click.IntRange(1, 65535),
    default=DEFAULT_HTTP_PORT,
    show_default=True,
    help="Port of the HTTP listener.",
)
def command(
    directory: Path,
    server_name: str,
    data_dir: Path | None,
    replication_port: int,
    http_port: int,
) -> None:
    """Write DIRECTORY/master.yaml and DIRECTORY/worker.yaml.

    They use an embedded PostgreSQL under DIRECTORY/data and need nothing else.
    """
    if replication_port == http_port:
        raise click.BadParameter("must differ from --replication-port", param_hint="--http-port")
    place = data_place(directory, names.server_name(server_name), data_dir)
    written = write_configuration(directory, place, server_name, replication_port, http_port)
    for path in written:
        click.echo(f"wrote {path}")
    if place.instead_of is not None:
        click.echo(
            f"data goes to {place.path}: PostgreSQL does not run as root, and user {place.user},"
            f" as whom it runs, cannot enter {place.instead_of}"
        )
    click.echo(f"next: synrepl check-config -c {written[0]}")


def data_place(directory: Path, server_name: str, wanted: Path | None) -> DataPlace:
    """A folder for the data that PostgreSQL can work in.

    :param wanted: the only one to take; None for the usual one, or another if need be
    :raises DataDirClosed: ``wanted`` is closed to the user whom PostgreSQL runs as
    :raises DataThere: the usual one is, and the other is in use
    """
    path = (wanted or directory / "data").absolute()
    account = account_for(path)
    if os.geteuid() != 0 or can_enter(account, path.parent):  # the folder itself will be opened
        return DataPlace(Path("data") if wanted is None else path, account.name)
    if wanted is not None:
        raise DataDirClosed(user=account.name, path=path.parent)
    system = SYSTEM_DATA / server_name
    if not can_enter(account, SYSTEM_DATA):
        raise DataDirClosed(user=account.name, path=SYSTEM_DATA)
    if system.exists():
        raise DataThere(path=system, user=account.name, directory=path.parent)
    return DataPlace(system, account.name, instead_of=path.parent)


def write_configuration(
    directory: Path, place: DataPlace, server_name: str, replication_port: int, http_port: int
) -> list[Path]:
    """Fill in the templates; the directory and the folder for the data are made when missing.

    :returns: the files written, the master's first
    :raises AlreadyThere: one of the files exists; then none is written
    :raises CannotWrite: the directory or a file cannot be made
    """
    facts = {
        "server_name": server_name,
        "data_dir": jsons.encode(str(place.path)).decode(),
        "replication_port": replication_port,
        "http_port": http_port,
    }
    paths = [directory / name for name in TEMPLATES]
    for path in paths:
        if path.exists():
            raise AlreadyThere(path=path)
    templates = resources.files("synrepl.daemon") / "templates"
    try:
        data = directory / place.path
        _make(directory)
        _make(data.parent)
        data.mkdir(mode=0o700, exist_ok=True)
        for path in paths:
            text = (templates / path.name).read_text(encoding="utf-8")
            _write(path, string.Template(text).substitute(facts))
    except OSError as error:
        raise CannotWrite(path=error.filename or directory, reason=error.strerror) from None
    return paths


def _make(directory: Path) -> None:
    """Make a folder and those above it; root's can be entered by PostgreSQL's user."""
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
