"""Sends and receives commands for a worker's handlers, wired from its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from synrepl.core.clock import Scheduler
from synrepl.core.log import Logger
from synrepl.core.slices import Slices
from synrepl.core.tokens import Token
from synrepl.daemon.config.config import WorkerConfig
from synrepl.services.bus.own_writer import AnnouncedStream
from synrepl.services.following.command_link import CommandLink
from synrepl.services.following.follower import Follower
from synrepl.services.handlers import SyncingUsers
from synrepl.services.sending.commands import Commands
from synrepl.services.sending.outgoing_commands import OutgoingCommands
from synrepl.services.serving.federation_trim import (
    FederationTrim,
    federation_status,
    store_trimmer,
)
from synrepl.services.serving.peer_states import NamedSource, PeerStates
from synrepl.services.status.status import syncing_status
from synrepl.storage.store import FactStore
from synrepl.streams.synapse.federation import FEDERATION
from synrepl.wire.commands import Command
from synrepl.wire.dialects import CLIENT_DIALECTS, CURRENT


class WorkerCommands:
    """The commands that a worker sends, and those that it receives over Redis.

    :param on_command: called with the commands for handlers
    :param federation_states: states of the streams that this worker writes; None if
        ``federation`` is not one of them
    :param store: the store of the ``federation`` stream
    :ivar commands: the interface of handlers for sending
    :ivar link: sits between the connection and the follower
    """

    def __init__(
        self,
        scheduler: Scheduler,
        config: WorkerConfig,
        follower: Follower,
        on_command: Callable[[Command], object],
        federation_states: Mapping[str, AnnouncedStream] | None,
        store: FactStore | None,
        log: Logger,
    ) -> None:
        name, on_bus = config.instance_name, config.redis is not None
        dialect = CURRENT if on_bus else CLIENT_DIALECTS[config.dialect]
        slices = Slices(scheduler)
        writes_federation = federation_states is not None
        self._own = NamedSource(name)
        self._federation_states = {} if federation_states is None else federation_states
        self.outgoing = OutgoingCommands(
            scheduler, slices, name, dialect, log, clears_first=bool(config.handlers)
        )
        self._states = (
            PeerStates(
                scheduler,
                slices,
                log,
                lambda source, command: on_command(command),
                config.federation_sender_instances if writes_federation else None,
                self._federation_position,
            )
            if on_bus
            else None
        )
        if self._states is not None and writes_federation and store is not None:
            trim = store_trimmer(store, FEDERATION)
            FederationTrim(scheduler, self._states.federation_acks, trim, log)
        self.commands = Commands(name, self, scheduler.seconds, (dialect,))
        self.link = CommandLink(follower, self.outgoing, self._states)

    @property
    def syncing(self) -> SyncingUsers | None:
        """Users that sync through any process; None over TCP, where workers do not learn of them."""
        return None if self._states is None else self._states.user_syncs

    def send(self, command: Command) -> None:
        """Send a command of a handler; on Redis, also record it like those of other processes.

        :raises Refused: :raises Unavailable: it is not sent
        """
        self.outgoing.send(command)
        if self._states is not None:
            self._states.apply(self._own, command)

    def _federation_position(self) -> Token:
        written = self._federation_states.get(FEDERATION.name)
        return 0 if written is None else written.linear

    def status(self, trimmed: Token = 0) -> dict[str, Any]:
        """The states of other processes, and the commands that wait to be sent."""
        states = self._states
        return {
            "sending": {
                "syncing_users": self.outgoing.syncing_users,
                "acknowledged": self.outgoing.acknowledged,
                "unsent": self.outgoing.unsent,
            },
            "syncing_users": None if states is None else syncing_status(states.user_syncs),
            "federation": None
            if states is None
            else federation_status(states.federation_acks, trimmed),
        }
