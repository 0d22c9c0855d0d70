"""``synrepl init``: write a configuration that runs unchanged."""

from __future__ import annotations

import os
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from secrets import token_urlsafe
from types import MappingProxyType
from typing import TypeGuard

import click
import yaml

from synrepl.core import jsons, names
from synrepl.core.errors import ConfigError, InputError, Refused
from synrepl.daemon.config.client_streams import CLIENT_STREAMS
from synrepl.daemon.config.signing_key import new_signing_key
from synrepl.daemon.config.yaml import parse_yaml
from synrepl.rooms import BadIdentifier, check_new_user_id
from synrepl.storage.launch.data_dir import can_enter
from synrepl.storage.launch.postgres import account_for
from synrepl.storage.rooms.partial.swap_facts import RESYNC_STREAMS
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.declared import declare
from synrepl.streams.definition import Stream
from synrepl.streams.synapse import SYNAPSE_STREAMS

TEMPLATES = ("master.yaml", "worker.yaml")

#: Not Synapse's 9092 and 9093, so that both can run on one machine.
DEFAULT_REPLICATION_PORT = 9392
DEFAULT_HTTP_PORT = 9393
DEFAULT_WORKER_HTTP_PORT = 9394

#: Where Matrix clients connect: to the master, and to the worker.
DEFAULT_CLIENT_PORT = 8008
DEFAULT_WORKER_CLIENT_PORT = 8009

#: The files of a server with rooms: its signing key, and the passwords of its users.
SIGNING_KEY = "signing.key"
USERS_FILE = "users.yaml"
PASSWORD_BYTES = 12

#: What the configurations say of other servers.
_FEDERATION_OF_MASTER = (
    resources.files("synrepl.cli") / "templates" / "federation.yaml"
).read_text(encoding="utf-8")
_FEDERATION_OF_WORKER = (
    "  # As in master.yaml; this process needs no port for other servers.\n  #federation: {}\n"
)

#: The users of a server that is to be tried.
DEFAULT_USERS = ("alice", "bob")

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
    "--rooms",
    is_flag=True,
    help="Keep Matrix rooms, and serve Matrix clients: makes a signing key, and users with passwords.",
)
@click.option(
    "--user",
    "users",
    multiple=True,
    metavar="NAME",
    help="With --rooms, a user of the server; repeatable. Default: alice and bob.",
)
@click.option(
    "--client-port",
    type=_PORT,
    default=DEFAULT_CLIENT_PORT,
    show_default=True,
    help="With --rooms, port of the master for Matrix clients.",
)
@click.option(
    "--worker-client-port",
    type=_PORT,
    default=DEFAULT_WORKER_CLIENT_PORT,
    show_default=True,
    help="With --rooms, port of the worker for Matrix clients.",
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
    rooms: bool,
    users: tuple[str, ...],
    client_port: int,
    worker_client_port: int,
    data_dir: Path | None,
    replication_port: int,
    http_port: int,
    worker_http_port: int,
) -> None:
    """Write DIRECTORY/master.yaml and DIRECTORY/worker.yaml.

    They use an embedded PostgreSQL under DIRECTORY/data and need nothing else.
    """
    ports = [replication_port, http_port, worker_http_port]
    options = ["--replication-port", "--http-port", "--worker-http-port"]
    if rooms:
        ports += [client_port, worker_client_port]
        options += ["--client-port", "--worker-client-port"]
    elif users:
        raise click.BadParameter("is for --rooms", param_hint="--user")
    for place, port in enumerate(ports):
        if port in ports[:place]:
            others = " and ".join(options[:place])
            raise click.BadParameter(f"must differ from {others}", param_hint=options[place])
    names.server_name(server_name)
    needed = {CACHES, *(stream.name for stream in (*RESYNC_STREAMS, *CLIENT_STREAMS) if rooms)}
    built_in = [stream for stream in SYNAPSE_STREAMS if synapse or stream.name in needed]
    passwords = new_users(users or DEFAULT_USERS, server_name) if rooms else {}
    settings = {
        "server_name": server_name,
        "streams": declared_streams(streams, built_in),
        "catalogue": "all" if synapse else f"[{', '.join(each.name for each in built_in)}]",
        "rooms_master": _rooms_section(client_port, _FEDERATION_OF_MASTER) if rooms else "",
        "rooms_worker": _rooms_section(worker_client_port, _FEDERATION_OF_WORKER) if rooms else "",
        "replication_port": replication_port,
        "http_port": http_port,
        "worker_http_port": worker_http_port,
    }
    data = choose_data_directory(directory, server_name, data_dir)
    written = write_configuration(directory, data, settings, _private_files(passwords))
    for path in written:
        click.echo(f"wrote {path}")
    if rooms:
        click.echo(f"users, with their passwords in {USERS_FILE}: {', '.join(passwords)}")
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
    directory: Path,
    data_directory: DataDirectory,
    settings: Mapping[str, object],
    private: Mapping[str, str] = MappingProxyType({}),
) -> list[Path]:
    """Fill in the templates; missing directories are created.

    :param settings: values of the templates' placeholders
    :param private: contents of further files by name, which only their owner may read
    :returns: the files written, the master's first
    :raises AlreadyThere: one of the files exists; nothing is written
    :raises CannotWrite: a directory or file cannot be created
    """
    data_dir = jsons.encode(str(data_directory.path)).decode()
    paths = [directory / name for name in TEMPLATES]
    secret = {directory / name: text for name, text in private.items()}
    for path in (*paths, *secret):
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
        for path, text in secret.items():
            _write(path, text, mode=0o600)
    except OSError as error:
        raise CannotWrite(path=error.filename or directory, reason=error.strerror) from None
    return [*paths, *secret]


def new_users(users: Iterable[str], server_name: str) -> dict[str, str]:
    """Users with new passwords, by user ID.

    :param users: the part of each ID before the server name
    :raises click.BadParameter: one cannot be the name of a user
    """
    found: dict[str, str] = {}
    for name in users:
        user_id = f"@{name}:{server_name}"
        try:
            check_new_user_id(user_id)
        except BadIdentifier as error:
            raise click.BadParameter(str(error), param_hint="--user") from None
        found[user_id] = token_urlsafe(PASSWORD_BYTES)
    return found


def _private_files(passwords: Mapping[str, str]) -> dict[str, str]:
    """The files that a server with rooms needs; none without users."""
    if not passwords:
        return {}
    users = yaml.safe_dump({"users": dict(passwords)}, sort_keys=False)
    return {SIGNING_KEY: new_signing_key("1"), USERS_FILE: users}


def _rooms_section(port: int, federation: str) -> str:
    """The section ``rooms`` of a process with a listener for clients.

    :param federation: lines about other servers
    """
    lines = ("rooms:", f"  client_api: {{port: {port}, users: {USERS_FILE}}}")
    return "\n".join([*lines, f"  signing_key: {SIGNING_KEY}", federation])


def _make(directory: Path) -> None:
    """Make a directory and its parents; those that root makes can be entered by PostgreSQL's user."""
    for path in (*reversed(directory.absolute().parents), directory):
        if not path.is_dir():
            path.mkdir()
            if os.geteuid() == 0:
                path.chmod(path.stat().st_mode | 0o011)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, mode)

    try:
        with open(path, "x", encoding="utf-8", opener=opener) as file:
            file.write(text)
    except FileExistsError:
        raise AlreadyThere(path=path) from None
