"""``synrepl init``: write a configuration that runs as it is."""

from __future__ import annotations

import string
from importlib import resources
from pathlib import Path

import click

from synrepl.core import names
from synrepl.core.errors import InputError, Refused

TEMPLATES = ("master.yaml", "worker.yaml")

#: Not Synapse's 9092 and 9093, so that both can run on one machine.
DEFAULT_REPLICATION_PORT = 9392
DEFAULT_HTTP_PORT = 9393


class AlreadyThere(Refused):
    """{path} exists already; nothing was written. Name another directory, or remove it first"""


class CannotWrite(InputError):
    """{path} cannot be written: {reason}"""


@click.command("init")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--server-name", required=True, help="Name of this server, such as example.com.")
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
def command(directory: Path, server_name: str, replication_port: int, http_port: int) -> None:
    """Write DIRECTORY/master.yaml and DIRECTORY/worker.yaml.

    They use an embedded PostgreSQL under DIRECTORY/data and need nothing else.
    """
    if replication_port == http_port:
        raise click.BadParameter("must differ from --replication-port", param_hint="--http-port")
    written = write_configuration(directory, server_name, replication_port, http_port)
    for path in written:
        click.echo(f"wrote {path}")
    click.echo(f"next: synrepl check-config -c {written[0]}")


def write_configuration(
    directory: Path, server_name: str, replication_port: int, http_port: int
) -> list[Path]:
    """Fill in the templates; the directory is made when it is missing.

    :returns: the files written, the master's first
    :raises BadName: ``server_name`` is none
    :raises AlreadyThere: one of the files exists; then none is written
    :raises CannotWrite: the directory or a file cannot be made
    """
    facts = {
        "server_name": names.server_name(server_name),
        "replication_port": replication_port,
        "http_port": http_port,
    }
    paths = [directory / name for name in TEMPLATES]
    for path in paths:
        if path.exists():
            raise AlreadyThere(path=path)
    templates = resources.files("synrepl.daemon") / "templates"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "data").mkdir(mode=0o700, exist_ok=True)
        for path in paths:
            text = (templates / path.name).read_text(encoding="utf-8")
            with path.open("x", encoding="utf-8") as file:
                file.write(string.Template(text).substitute(facts))
    except FileExistsError:
        raise AlreadyThere(path=path) from None
    except OSError as error:
        raise CannotWrite(path=error.filename or directory, reason=error.strerror) from None
    return paths
