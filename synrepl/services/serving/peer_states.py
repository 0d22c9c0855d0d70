"""States that other processes report: users syncing through them, and acknowledged tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from synrepl.core.backlog import UNLIMITED, Capacity
from synrepl.core.clock import Scheduler
from synrepl.core.errors import Refused, SynreplError
from synrepl.core.log import Logger
from synrepl.core.slices import Slices
from synrepl.core.tokens import Token
from synrepl.services.serving.federation_acks import FederationAcks
from synrepl.services.serving.user_sync import UserSyncs
from synrepl.wire.commands import ClearUserSync, Command, FederationAck, UserSync


class CommandSource(Protocol):
    """Where commands come from, such as a connection."""

    @property
    def name(self) -> str:
        """The name for logs, and for commands that name no instance."""


@dataclass(frozen=True, slots=True, eq=False)
class NamedSource:
    """A source of commands other than a TCP connection."""

    name: str


#: All processes on Redis, as one source.
BUS = NamedSource("bus")


class PeerStates:
    """The states that commands carry, by source.

    :param ended: called with (name, command) for users that stopped syncing because their source
        was lost
    :param senders: names of the federation senders, which all have to acknowledge; None in a
        process that does not keep the stream
    :param position: returns the position of the ``federation`` stream
    :param capacity: back-pressure of ``ended``
    :ivar ignored: number of ignored commands, by name of the error
    """

    def __init__(
        self,
        scheduler: Scheduler,
        slices: Slices,
        log: Logger,
        ended: Callable[[str, ClearUserSync | UserSync], object] = lambda name, command: None,
        senders: Collection[str] | None = (),
        position: Callable[[], Token] = lambda: 0,
        capacity: Capacity = UNLIMITED,
    ) -> None:
        self._log = log
        self.user_syncs: UserSyncs[CommandSource] = UserSyncs(
            scheduler, slices, lambda source: source.name, ended, capacity
        )
        self.federation_acks: FederationAcks[CommandSource] = FederationAcks(
            senders or (), position
        )
        self._counts_acks = senders is not None
        self.ignored: Counter[str] = Counter()

    def apply(self, source: CommandSource, command: Command) -> None:
        """Apply a command to the states; a command that carries no state does nothing.

        :raises Refused: the command is ignored
        """
        if isinstance(command, UserSync):
            self.user_syncs.user_sync(source, command)
        elif isinstance(command, ClearUserSync):
            self.user_syncs.clear(source, command)
        elif isinstance(command, FederationAck) and self._counts_acks:
            self.federation_acks.acknowledge(source, command.instance, command.token, source.name)

    def apply_or_log(self, source: CommandSource, command: Command) -> bool:
        """Apply a command; if it is refused, count it and log the first of each kind.

        For sources that cannot be answered.

        :returns: False if the command was ignored
        """
        try:
            self.apply(source, command)
        except Refused as error:
            self.ignore(source.name, error)
            return False
        return True

    def ignore(self, name: str, error: SynreplError) -> None:
        """Count an ignored command, and log the first of each kind."""
        kind = type(error).__name__
        self.ignored[kind] += 1
        if self.ignored[kind] == 1:
            self._log.warn("{name}: {error}", name=name, error=error)

    def lost(self, source: CommandSource) -> None:
        """A source is lost, and its users with it."""
        self.user_syncs.connection_lost(source)
        self.federation_acks.connection_lost(source)
