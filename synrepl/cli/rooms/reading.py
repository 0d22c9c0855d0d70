"""What the commands that read rooms share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.text import Text

from synrepl.cli.configured_database import owned_database
from synrepl.cli.running import run
from synrepl.cli.terminal import printable
from synrepl.daemon.config.config import load
from synrepl.rooms import check_user_id
from synrepl.services.rooms.store import RoomStore
from synrepl.storage.rooms.tables.events import EventFlags

T = TypeVar("T")

#: What is said about an event, by its flags.
_FLAGS: Mapping[EventFlags, str] = {
    EventFlags.OUTLIER: "outlier",
    EventFlags.REJECTED: "rejected",
    EventFlags.SOFT_FAILED: "soft-failed",
    EventFlags.PARTIAL: "partial state",
    EventFlags.ERASED: "erased",
    EventFlags.UNCONFIRMED: "unconfirmed",
    EventFlags.ABANDONED: "abandoned partial state",
    EventFlags.AFTER_GAP: "after missed events",
}


def read_rooms(config: tuple[Path, ...], work: Callable[[RoomStore], Awaitable[T]]) -> T:
    """Read the rooms in the database of a configuration; once per process.

    :raises WrongServer: :raises SchemaBehind: and the errors of :class:`.RoomStore`
    """
    loaded = load(config)

    async def main(reactor: Any) -> T:
        async with owned_database(reactor, loaded) as database:
            return await work(RoomStore(database))

    return run(main)


def checked_user(context: click.Context, option: click.Parameter, user: str | None) -> str | None:
    """A user ID that was given, as a callback of its option.

    :raises BadIdentifier: it is no user ID
    """
    if user is not None:
        check_user_id(user)
    return user


def flag_words(flags: int) -> str:
    """The flags of an event in words; empty for an ordinary event."""
    return ", ".join(word for flag, word in _FLAGS.items() if flags & flag)


def text(value: object) -> Text:
    """A cell of untrusted text; ``-`` for none. Markup in it is not interpreted."""
    return Text("-" if value is None else printable(str(value)))
