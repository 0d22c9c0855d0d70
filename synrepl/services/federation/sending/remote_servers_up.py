"""REMOTE_SERVER_UP: a server that was away is up again, as any process may find out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.services.federation.sending.sender import FederationSender
from synrepl.services.handlers import Handler
from synrepl.wire.commands import Command, RemoteServerUp


class EndsBackOff(Protocol):
    """See :class:`synrepl.services.federation.backing_off.BackOffTransport`.

    :ivar listeners: called with the name of a server that was away and is up
    """

    listeners: list[Callable[[str], object]]

    async def server_is_up(self, server: str) -> None:
        """A server is up."""


class RemoteServersUp(Handler):
    """Tells other processes of servers that are up again, and has the process that sends to a server try it at once.

    What this process finds out itself, by a request that succeeds or by one that a server sends, it hears from the
    transport; what others find out comes as a command.

    :param sender: of this process; None if it sends nothing
    :param announce: sends REMOTE_SERVER_UP to the other processes
    """

    streams = ()

    def __init__(
        self,
        transport: EndsBackOff,
        sender: FederationSender | None,
        announce: Callable[[str], object],
        log: Logger,
    ) -> None:
        self._transport = transport
        self._sender = sender
        self._announce = announce
        self._log = log
        transport.listeners.append(self._is_up)

    async def on_command(self, source: str, command: Command) -> None:
        """End the back-off of a server that this process sends to."""
        sender = self._sender
        if sender is None or not isinstance(command, RemoteServerUp):
            return
        if sender.owns(command.server):
            await self._transport.server_is_up(command.server)
            sender.server_is_up(command.server)

    def _is_up(self, server: str) -> None:
        if self._sender is not None:
            self._sender.server_is_up(server)
        try:
            self._announce(server)
        except SynreplError as error:
            self._log.warn(
                "other processes are not told that {server} is up: {error}",
                server=server,
                error=error,
            )
