"""``synrepl dead-letters``: facts that a worker's handlers could not process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from synrepl.cli.configured_database import run_in_database
from synrepl.cli.conventions import config_option, json_option, print_json
from synrepl.cli.status.handler_tables import dead_letter_table
from synrepl.cli.terminal import show
from synrepl.core.errors import ConfigError, InputError
from synrepl.core.tokens import MAX_TOKEN
from synrepl.daemon.config.config import WorkerConfig, load
from synrepl.storage.database import Transaction
from synrepl.storage.followers import dead_letters
from synrepl.storage.followers.dead_letters import MOST_LISTED, DeadLetter, DeadLetterFilter

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class NotAWorker(ConfigError):
    """dead letters are kept for the handlers of a worker; give a worker's configuration"""


class NoSuchHandler(InputError):
    """the configuration has no handler {handler!r}, so nothing could be handed to it; it has {known}"""


class NoSelection(InputError):
    """name the dead letters: --handler, --stream, --token, or --all"""


@click.group("dead-letters")
def command() -> None:
    """Show, replay and discard facts that handlers could not process.

    After N failed attempts, a handler with 'on_failure: {attempts: N}' stores a fact
    as a dead letter, and continues.
    """


def selection_options(command: F) -> F:
    """Options that select dead letters: ``handler``, ``stream``, ``token``."""
    for option in (
        click.option(
            "--token", type=click.IntRange(0, MAX_TOKEN), help="Only those of this token."
        ),
        click.option("--stream", help="Only those of this stream."),
        click.option("--handler", help="Only those of this handler, by its name."),
    ):
        command = option(command)
    return command


@command.command("list")
@config_option
@selection_options
@click.option("--traceback", is_flag=True, help="Show rows and tracebacks as well.")
@json_option
def list_letters(
    config: tuple[Path, ...],
    handler: str | None,
    stream: str | None,
    token: int | None,
    traceback: bool,
    as_json: bool,
) -> None:
    """Show dead letters, in the order of tokens; a thousand at most."""
    wanted = DeadLetterFilter(handler, stream, token)
    found = _in_database(
        _worker(config),
        lambda txn, follower: dead_letters.look(txn, follower, wanted, limit=MOST_LISTED),
    )
    if as_json:
        print_json({"dead_letters": [_in_full(letter) for letter in found]})
    elif not found:
        click.echo("no dead letters")
    elif traceback:
        for letter in found:
            show(dead_letter_table([letter.to_json()]))
            click.echo(f"{letter.fact.rows}\n{letter.fact.reason.traceback}")
    else:
        show(dead_letter_table(letter.to_json() for letter in found))


@command.command("replay")
@config_option
@selection_options
@click.option("--all", "every", is_flag=True, help="All dead letters of the worker.")
def replay(
    config: tuple[Path, ...],
    handler: str | None,
    stream: str | None,
    token: int | None,
    every: bool,
) -> None:
    """Request that dead letters are passed to their handlers again.

    The running worker does so within seconds, otherwise the next one that starts. A
    dead letter that its handler processes is removed from the list; one that fails
    again stays, with the new error. A transactional handler processes each exactly
    once. Facts that a failover of the database has lost are left out.
    """
    worker, wanted = _worker(config), _selection(handler, stream, token, every)
    known = [configured.name_of_positions for configured in worker.handlers]
    if handler is not None and handler not in known:
        raise NoSuchHandler(handler=handler, known=", ".join(known) or "none")
    count = _in_database(
        worker, lambda txn, follower: dead_letters.request_replay(txn, follower, wanted)
    )
    click.echo(f"replay of {count} dead letters is requested")


@command.command("discard")
@config_option
@selection_options
@click.option("--all", "every", is_flag=True, help="All dead letters of the worker.")
def discard(
    config: tuple[Path, ...],
    handler: str | None,
    stream: str | None,
    token: int | None,
    every: bool,
) -> None:
    """Delete dead letters, so that they are never processed."""
    wanted = _selection(handler, stream, token, every)
    count = _in_database(
        _worker(config), lambda txn, follower: dead_letters.discard(txn, follower, wanted)
    )
    click.echo(f"{count} dead letters are discarded")


def _selection(
    handler: str | None, stream: str | None, token: int | None, every: bool
) -> DeadLetterFilter:
    """The filter that the options describe.

    :raises NoSelection: no option is given
    """
    if not every and handler is None and stream is None and token is None:
        raise NoSelection()
    return DeadLetterFilter(handler, stream, token)


def _worker(config: tuple[Path, ...]) -> WorkerConfig:
    """:raises NotAWorker:"""
    loaded = load(config)
    if not isinstance(loaded, WorkerConfig):
        raise NotAWorker()
    return loaded


def _in_database(worker: WorkerConfig, work: Callable[[Transaction, str], T]) -> T:
    return run_in_database(worker, "dead letters", lambda txn: work(txn, worker.name_as_follower))


def _in_full(letter: DeadLetter) -> dict[str, Any]:
    fact = letter.fact
    more = {
        "fact_writer": fact.fact_writer,
        "rows": fact.rows,
        "traceback": fact.reason.traceback,
    }
    return letter.to_json() | more
