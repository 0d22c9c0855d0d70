"""A worker's connection, shared by its follower and the commands that its handlers send."""

from __future__ import annotations

from collections.abc import Sequence

from synrepl.services.following.follower import Follower, Upstream
from synrepl.services.sending.outgoing_commands import OutgoingCommands
from synrepl.services.serving.peer_states import BUS, PeerStates
from synrepl.streams.synapse.federation import FEDERATION
from synrepl.wire.commands import Command, Position, Rdata


class CommandLink:
    """Forwards everything to the follower, and connects ``outgoing`` when commands may be sent.

    :param states: states that other processes publish on Redis; None over TCP, where a master
        does not pass them on to its clients
    """

    def __init__(
        self, follower: Follower, outgoing: OutgoingCommands, states: PeerStates | None
    ) -> None:
        self._follower = follower
        self._outgoing = outgoing
        self._states = states
        self._unproven: Upstream | None = None

    def connected(self, upstream: Upstream) -> None:
        """Start following, and connect ``outgoing`` once the peer has proven itself."""
        self._follower.connected(upstream)
        if self._states is not None:
            self._outgoing.connected(upstream)
        else:  # commands contain secrets, so wait until SERVER has identified the peer
            self._unproven = upstream

    def received(self, commands: Sequence[Command]) -> None:
        """Process lines from the peer."""
        if self._unproven is not None:
            upstream, self._unproven = self._unproven, None
            self._outgoing.connected(upstream)
        # First, so that handlers of a command see its effect in the states.
        if self._states is not None or self._outgoing.awaits_position:
            self._look(commands)
        self._follower.received(commands)

    def disconnected(self) -> None:
        """Forget the connection."""
        self._unproven = None
        self._outgoing.disconnected()
        self._follower.disconnected()
        if self._states is not None:
            self._states.lost(BUS)

    def _look(self, commands: Sequence[Command]) -> None:
        for command in commands:
            kind = type(command)
            if kind is Rdata:
                continue
            if isinstance(command, Position):
                if command.stream == FEDERATION.name:
                    self._outgoing.position(command.new)
            elif self._states is not None:
                self._states.apply_or_log(BUS, command)
