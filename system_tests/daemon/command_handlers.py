"""Handlers that send commands when an order says so, and that record received commands."""

from __future__ import annotations

import json
from pathlib import Path

from msgspec.structs import replace

from synrepl.services.handlers import Access, Batch, Handler
from synrepl.services.serving.user_sync import UNNAMED
from synrepl.wire.codec import write_line
from synrepl.wire.commands import Command
from synrepl.wire.dialects import CURRENT, LEGACY


class CommandSender(Handler):
    """Sends a command for each order, whose name is JSON: the name of a method, and its arguments.

    :param path: file that gets a line for each refusal
    """

    streams = ("orders",)

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    async def on_start(self, access: Access) -> None:
        """Keep what commands are sent with."""
        self._commands = access.commands

    async def on_rows(self, batch: Batch) -> None:
        """Send them."""
        for row in batch.rows:
            method, *arguments = json.loads(row.order_id)  # type: ignore[attr-defined]
            try:
                getattr(self._commands, method)(*arguments)
            except Exception as error:
                _add(self._path, f"{type(error).__name__}: {error}")


class CommandRecorder(Handler):
    """Writes a line into a file for each received command, with the users that sync then.

    :param path: path of the file
    """

    streams = ()

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    async def on_start(self, access: Access) -> None:
        """Keep where it is asked who is syncing."""
        self._syncing = access.syncing

    async def on_command(self, source: str, command: Command) -> None:
        """Keep it."""
        if command.verb in ("REPLICATE", "POSITION"):
            return
        dialect = LEGACY if command.verb in ("REMOVE_PUSHER", "INVALIDATE_CACHE") else CURRENT
        if getattr(command, "instance", "") is None:
            command = replace(command, instance=UNNAMED)
        syncing = "?" if self._syncing is None else " ".join(sorted(self._syncing.users()))
        _add(self._path, f"{source}: {write_line(command, dialect).decode()} | {syncing}")


class FederationSender(Handler):
    """Acknowledges the facts of the federation stream.

    :param path: file that gets each token
    """

    streams = ("federation",)

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    async def on_start(self, access: Access) -> None:
        """Keep what it acknowledges with."""
        self._commands = access.commands

    async def on_rows(self, batch: Batch) -> None:
        """Acknowledge them."""
        self._commands.federation_ack(batch.upto)
        _add(self._path, str(batch.upto))


def _add(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(f"{line}\n")


class SendOnStart(CommandSender):
    """Sends a command in ``on_start``."""

    streams = ()

    async def on_start(self, access: Access) -> None:
        """Send it."""
        access.commands.user_sync("@boss:x", True)
