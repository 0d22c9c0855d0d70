"""``synrepl check-config``: checks a configuration and prints it in full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from synrepl.cli.conventions import config_option, json_option, print_json
from synrepl.daemon.checked_config import checked_either, checked_master, checked_worker
from synrepl.daemon.config.config import WorkerConfig
from synrepl.daemon.config.decode import key_of
from synrepl.daemon.config.secret import Secret

LOADERS = {"master": checked_master, "worker": checked_worker}


@click.command("check-config")
@config_option
@click.option(
    "--role",
    type=click.Choice(list(LOADERS)),
    help="Role of the process. Default: worker if the file has the key 'master', otherwise master.",
)
@json_option
def command(config: tuple[Path, ...], role: str | None, as_json: bool) -> None:
    """Check a configuration and print it in full, defaults included.

    Durations are printed in seconds, sizes in bytes, and secrets not at all.
    The classes of handlers are imported, from the working directory as well, but not
    instantiated. Exits with 2 if the configuration is invalid, and reports every
    error.
    """
    loaded = LOADERS[role](config) if role else checked_either(config)
    shown = effective(loaded)
    if as_json:
        print_json(shown)
        return
    click.echo(f"# {'worker' if isinstance(loaded, WorkerConfig) else 'master'}")
    click.echo(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True), nl=False)


def effective(value: Any) -> Any:
    """A configuration, or part of one, as plain data under the keys of the file."""
    if is_dataclass(value) and not isinstance(value, (type, Secret)):
        return {key_of(field): effective(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (Secret, Path)):
        return str(value)
    if isinstance(value, Mapping):
        return {key: effective(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [effective(item) for item in value]
    return value
