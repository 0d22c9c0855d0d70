"""Options and output conventions that all sub-commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import rich.console
from click.core import ParameterSource

from synrepl.core import jsons

F = TypeVar("F", bound=Callable[..., Any])


def config_option(command: F) -> F:
    """``-c PATH``, repeatable: configuration files and directories, as ``config: tuple[Path, …]``."""
    return _config_option(command, required=True)


def optional_config_option(command: F) -> F:
    """As :func:`config_option`, but optional, for a group whose sub-commands have it as well."""
    return _config_option(command, required=False)


def _config_option(command: F, *, required: bool) -> F:
    return click.option(
        "-c",
        "--config",
        "config",
        type=click.Path(path_type=Path),
        multiple=True,
        required=required,
        help="Configuration file, or directory of *.yaml files; repeatable, later ones win.",
    )(command)


def refuse_options(ctx: click.Context) -> None:
    """Refuse options of a group given before a sub-command, which would ignore them.

    :raises UsageError: an option was given
    """
    for name in ctx.params:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"give options after '{ctx.invoked_subcommand}'", ctx)


def json_option(command: F) -> F:
    """``--json``: print data for programs, as ``as_json: bool``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def print_json(data: Any) -> None:
    """Print one JSON value on one line of stdout."""
    click.echo(jsons.encode(data).decode())


def console() -> rich.console.Console:
    """A console on stdout; with colours only on a terminal, and if ``NO_COLOR`` is not set."""
    return rich.console.Console(highlight=False)
