"""A worker's connection, shared by its follower and the commands that its handlers send."""

from __future__ import annotations

from collections.abc import Sequence

from synrepl.services.following.follower import Follower, Upstream
from synrepl.services.sending.outgoing_commands import OutgoingCommands
from synrepl.services.serving.peer_states import BUS, PeerStates
from synrepl.streams.synapse.federation import FEDERATION
from synrepl.wire.commands import Command, Position, Rdata


class CommandLink:
    """Passes everything to the follower, and tells ``outgoing`` when and to whom to send.

    :param states: on Redis, where everybody hears everything: what others say of
        themselves; None over TCP, where a master tells its clients nothing of that
    """

    def __init__(
        self, follower: Follower, outgoing: OutgoingCommands, states: PeerStates | None
    ) -> None:
        self._follower = follower
        self._outgoing = outgoing
        self._states = states
        self._unproven: Upstream | None = None

    def connected(self, upstream: Upstream) -> None:
        """A connection was made."""
        self._follower.connected(upstream)
        if self._states is not None:
            self._outgoing.connected(upstream)
        else:  # commands hold secrets, so SERVER must have shown first that it is the right one
            self._unproven = upstream

    def received(self, commands: Sequence[Command]) -> None:
        """Lines from the other side."""
        if self._unproven is not None:
            upstream, self._unproven = self._unproven, None
            self._outgoing.connected(upstream)
        # First, so that a handler that is told of a command finds its effect in the states.
        if self._states is not None or self._outgoing.awaits_position:
            self._look(commands)
        self._follower.received(commands)

    def disconnected(self) -> None:
        """The connection is lost."""
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
