"""Handles the commands of a master's clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from synrepl.core.backlog import UNLIMITED, Capacity
from synrepl.core.clock import Scheduler
from synrepl.core.errors import Refused, SynreplError
from synrepl.core.log import Logger
from synrepl.core.slices import Slices
from synrepl.core.tokens import Token
from synrepl.services.announcing.lines import LineEncoder
from synrepl.services.announcing.publisher import Publisher
from synrepl.services.announcing.stream_state import StreamState
from synrepl.services.serving.client_catch_up import CatchUpLane, ClientCatchUp
from synrepl.services.serving.client_connection import ClientConnection, audience
from synrepl.services.serving.client_relay import ClientRelay
from synrepl.services.serving.federation_acks import FederationAcks, TooManySenders
from synrepl.services.serving.peer_states import BUS, CommandSource, NamedSource, PeerStates
from synrepl.services.serving.slow_clients import SlowClients
from synrepl.services.serving.user_sync import UserSyncs
from synrepl.services.sizes import DEFAULT_SIZES, Sizes
from synrepl.services.sources import FactSource
from synrepl.streams.catalogue import Catalogue, UnknownStream
from synrepl.streams.definition import Stream
from synrepl.streams.synapse.federation import FEDERATION
from synrepl.wire.closing import CloseReason, FailedToKeepUp
from synrepl.wire.commands import (
    CancelTask,
    ClearUserSync,
    Command,
    Error,
    FederationAck,
    InvalidateCache,
    LockReleased,
    Name,
    NewActiveTask,
    Ping,
    Position,
    Rdata,
    RemoteServerUp,
    RemovePusher,
    Replicate,
    Server,
    Sync,
    UserIp,
    UserSync,
)

#: Called with (name of the connection, command) for commands that are not about streams.
Events = Callable[[str, Command], None]


class NoCachesStream(Refused):
    """INVALIDATE_CACHE cannot be carried out: this process does not write the stream 'caches'"""


class FollowerState:
    """State of one connection.

    :ivar streams: the streams in the live lane; None for all of them
    :ivar catching_up: streams in the catch-up lane, by name
    :ivar wanted: streams requested by the commands being handled, with their start tokens;
        None starts at the current position
    :ivar wants_positions: whether a bare REPLICATE is among the commands being handled
    :ivar answering: whether an answer to a bare REPLICATE is pending
    :ivar sent_events: whether the client has sent commands for the consumers of events
    :ivar refusals: kinds of ignored commands that have been logged
    """

    def __init__(self, connection: ClientConnection, since: float) -> None:
        self.connection = connection
        self.since = since
        self.streams: set[str] | None = set()
        self.catching_up: dict[str, ClientCatchUp] = {}
        self.wanted: dict[str, Token | None] = {}
        self.wants_positions = False
        self.answering = False
        self.sent_events = False
        self.refusals: set[type[SynreplError]] = set()


class Master:
    """Answers clients: positions, catch-up, relayed commands, and events for handlers.

    Work that clients can request in any amount is done in slices. Repeated requests that
    are still pending are answered once.

    :param states: the positions of all streams, by name
    :param source: where missed facts are read from
    :param events: called with commands that are for handlers
    :param invalidate: carries out an INVALIDATE_CACHE of a legacy worker; None if the ``caches``
        stream is not written
    :param slices: budget for this work
    :param capacity: back-pressure of ``events``
    :param name: name of the process, as the source of its own commands
    :param senders: the names of the federation senders
    """

    def __init__(
        self,
        scheduler: Scheduler,
        catalogue: Catalogue,
        states: Mapping[str, StreamState],
        publisher: Publisher,
        source: FactSource,
        events: Events,
        log: Logger,
        invalidate: Callable[[InvalidateCache], None] | None = None,
        slices: Slices | None = None,
        capacity: Capacity = UNLIMITED,
        name: str = "master",
        senders: Collection[str] = (),
        sizes: Sizes = DEFAULT_SIZES,
    ) -> None:
        self._scheduler = scheduler
        self._catalogue = catalogue
        self._states = states
        self._publisher = publisher
        self._events = events
        self._log = log
        self._invalidate = invalidate
        self._slices = Slices(scheduler, sizes.turn_units) if slices is None else slices
        self._capacity = capacity
        self.followers: dict[ClientConnection, FollowerState] = {}
        self._lane = CatchUpLane(
            scheduler,
            self._slices,
            states,
            publisher,
            source,
            lambda connection: connection in self.followers,
            log,
            sizes,
        )
        self._relay = ClientRelay(scheduler, self._slices, lambda: self.followers)
        self._own = NamedSource(name)
        self._peer_states = PeerStates(
            scheduler, self._slices, log, events, senders, self._federation_position, capacity
        )
        self.commands: dict[str, int] = {}
        self.closed: dict[str, int] = {}
        self.slow_clients = SlowClients(scheduler, log)

    @property
    def user_syncs(self) -> UserSyncs[CommandSource]:
        """The users that sync through clients, this process, and processes on the bus."""
        return self._peer_states.user_syncs

    @property
    def federation_acks(self) -> FederationAcks[CommandSource]:
        """The tokens that federation senders have acknowledged."""
        return self._peer_states.federation_acks

    @property
    def ignored(self) -> Counter[str]:
        """Number of ignored commands, by name of the error."""
        return self._peer_states.ignored

    # -- connections ----------------------------------------------------------

    def connected(self, connection: ClientConnection) -> None:
        """A client has connected."""
        self.followers[connection] = FollowerState(connection, self._scheduler.seconds())

    def received(self, connection: ClientConnection, commands: Sequence[Command]) -> None:
        """Handle commands of a client; a connection that is being closed gets no answers."""
        follower, ending = self.followers[connection], connection.closing
        for command in commands:
            if connection.closing and not ending:  # because of one of these commands
                return
            self.commands[command.verb] = self.commands.get(command.verb, 0) + 1
            try:
                COMMAND_HANDLERS[type(command)](self, follower, command)
            except Refused as error:
                self._ignore(follower, error)
        if (follower.wants_positions or follower.wanted) and not connection.closing:
            self._answer(follower)

    def full(self, connection: ClientConnection) -> bool:
        """Whether a client must wait because the consumers of its commands are behind."""
        follower = self.followers.get(connection)
        if follower is None or not follower.sent_events:
            return False
        follower.sent_events = self._relay.full or self._capacity.full
        return follower.sent_events

    async def room(self, connection: ClientConnection) -> None:
        """Wait until :meth:`full` is false."""
        while self.full(connection):
            await self._relay.room()
            await self._capacity.room()

    def refused(self, reason: CloseReason) -> None:
        """Count a connection that was not accepted."""
        self.closed[reason] = self.closed.get(reason, 0) + 1

    def cut_off(self, connection: ClientConnection, fault: FailedToKeepUp) -> None:
        """A client is disconnected because it does not read."""
        self.slow_clients.cut_off(connection.name, connection.address, fault)

    def disconnected(self, connection: ClientConnection, reason: CloseReason) -> None:
        """A connection is lost."""
        self.closed[reason] = self.closed.get(reason, 0) + 1
        self._publisher.unsubscribe(connection)
        self.followers.pop(connection, None)
        self._peer_states.lost(connection)

    def shut_down(self) -> None:
        """Close all connections, with an ERROR."""
        for connection in list(self.followers):
            connection.close(CloseReason.SHUTTING_DOWN, "server shutting down")

    # -- REPLICATE ----------------------------------------------------------------------

    def _replicate(self, follower: FollowerState, command: Replicate) -> None:
        """Note a request; the last one for a stream counts."""
        if command.stream is None:
            follower.wants_positions = True
        elif command.stream == "ALL":
            generation = audience(follower.connection).generation
            for stream in self._catalogue.known_to(generation):
                follower.wanted[stream.name] = command.token
        else:
            try:
                stream = self._catalogue[command.stream]
            except UnknownStream as error:
                follower.connection.close(CloseReason.REPLICATE_REFUSED, str(error))
                return
            follower.wanted[stream.name] = command.token

    def _answer(self, follower: FollowerState) -> None:
        if follower.wants_positions:
            follower.wants_positions = False
            if not follower.answering:
                follower.answering = True
                self._scheduler.spawn("send positions", self._send_positions(follower))
        wanted, follower.wanted = follower.wanted, {}
        for name, token in wanted.items():
            self._answer_linear(follower, self._catalogue[name], token)

    async def _send_positions(self, follower: FollowerState) -> None:
        """Answer a modern client when the budget allows; one answer covers all pending requests."""
        await self._slices.step(len(self._states))
        follower.answering = False
        if follower.connection in self.followers and not follower.connection.closing:
            self._answer_positions(follower)

    def _answer_positions(self, follower: FollowerState) -> None:
        """Answer a modern client: positions of all writers of all streams, then the live lane.

        Only the client that asked is answered. Positions and subscription happen in the same
        turn, so no fact falls in between.
        """
        connection = follower.connection
        its_audience = audience(connection)
        self._publisher.subscribe(connection, its_audience, None)
        follower.streams = None
        encoder = self._publisher.encoder(its_audience)
        for stream in self._catalogue.known_to(its_audience.generation):
            self._send_position_lines(connection, encoder, stream)

    def _send_position_lines(
        self, connection: ClientConnection, encoder: LineEncoder, stream: Stream
    ) -> None:
        """Send the positions of a stream's writers; a client with a lower one must fetch."""
        for writer, position in self._states[stream.name].positions_to_announce():
            connection.write_live(encoder.position(stream, writer, position, position))

    def _answer_linear(
        self, follower: FollowerState, stream: Stream, token: Token | None, asked: bool = True
    ) -> None:
        """Answer a legacy client: every missed row, then POSITION, then the live lane.

        Rows that are published meanwhile wait in the table, not in memory: the catch-up lane
        reads until it has reached the present.

        :param asked: whether the client requested it. If not, it takes the lines for live ones,
            so no token may be repeated, which would be a duplicate
        """
        current = self._states[stream.name].linear
        after = current if token is None else max(0, token)
        catch_up = follower.catching_up.get(stream.name)
        if catch_up is not None:
            catch_up.ask(after, asked)
            return
        catch_up = follower.catching_up[stream.name] = ClientCatchUp()
        catch_up.ask(after, asked)
        self._subscribe_linear(follower)
        self._scheduler.spawn(
            f"catch up {follower.connection.name} on {stream.name}",
            self._catch_up(follower, stream, catch_up),
        )

    async def _catch_up(
        self, follower: FollowerState, stream: Stream, catch_up: ClientCatchUp
    ) -> None:
        connection = follower.connection
        try:
            if not await self._lane.run(connection, stream, catch_up):
                return
        except SynreplError as error:
            connection.close(CloseReason.REPLICATE_REFUSED, str(error))
            return
        del follower.catching_up[stream.name]
        assert follower.streams is not None
        follower.streams.add(stream.name)
        self._subscribe_linear(follower)
        connection.send(Position(stream.name, None, None, self._states[stream.name].linear))

    def _subscribe_linear(self, follower: FollowerState) -> None:
        if follower.streams is None:
            follower.streams = set()
        live = frozenset(follower.streams - follower.catching_up.keys())
        self._publisher.subscribe(follower.connection, audience(follower.connection), live)

    def left_behind(self, connection: ClientConnection, stream: Stream, after: Token) -> None:
        """Go back to the catch-up lane: more rows were held up than the live lane holds."""
        self._answer_linear(self.followers[connection], stream, after, asked=False)

    def stream_restarted(self, stream: Stream) -> None:
        """An in-memory stream has lost its facts: announce its position to all clients."""
        self._publisher.flush()
        for connection, follower in list(self.followers.items()):
            if follower.streams is None:
                encoder = self._publisher.encoder(audience(connection))
                if encoder.knows(stream):
                    self._send_position_lines(connection, encoder, stream)
            elif stream.name in follower.streams:
                self._answer_linear(follower, stream, None)

    # -- commands of other processes, and of this one --------------------------------------

    def received_from_bus(self, command: Command) -> None:
        """Handle a command from the bus, and relay it to clients if masters do that."""
        self._peer_states.apply_or_log(BUS, command)
        if isinstance(command, RemoteServerUp):
            try:
                self._relay.relay(command)
            except SynreplError as error:
                self._peer_states.ignore(BUS.name, error)

    def bus_lost(self) -> None:
        """The connections to the bus are lost."""
        self._peer_states.lost(BUS)

    def send(self, command: Command) -> None:
        """Carry out a command of this process's own handlers.

        :raises Refused: the command is not carried out
        """
        self._peer_states.apply(self._own, command)
        if isinstance(command, RemoteServerUp):
            self._relay.relay(command)
        elif isinstance(command, InvalidateCache):
            if self._invalidate is None:
                raise NoCachesStream()
            self._invalidate(command)
        self._events(self._own.name, command)

    def _federation_position(self) -> Token:
        state = self._states.get(FEDERATION.name)
        return 0 if state is None else max(state.positions.values(), default=state.linear)

    # -- everything else ------------------------------------------------------------------

    def _state(self, follower: FollowerState, command: Command) -> None:
        self._peer_states.apply(follower.connection, command)
        self._event(follower, command)

    def _federation_ack(self, follower: FollowerState, command: FederationAck) -> None:
        try:
            self._peer_states.apply(follower.connection, command)
        except TooManySenders:
            raise
        except Refused as error:  # ignored here, but possibly not by handlers and the bus
            self._ignore(follower, error)
        self._event(follower, command)

    def _remote_server_up(self, follower: FollowerState, command: RemoteServerUp) -> None:
        self._relay.relay(command, exclude=follower.connection)
        self._event(follower, command)

    def _invalidate_cache(self, follower: FollowerState, command: InvalidateCache) -> None:
        if self._invalidate is not None:
            try:
                self._invalidate(command)
            except SynreplError as error:
                # The connection is closed, so that the worker notices.
                follower.connection.close(CloseReason.INVALIDATION_REFUSED, str(error))
                return
        self._event(follower, command)

    def _event(self, follower: FollowerState, command: Command) -> None:
        follower.sent_events = True
        self._events(follower.connection.name, command)

    def _ignore(self, follower: FollowerState, error: Refused) -> None:
        """Count an ignored command, and log the first of each kind per connection."""
        self.ignored[type(error).__name__] += 1
        if type(error) not in follower.refusals:
            follower.refusals.add(type(error))
            self._log.warn("{name}: {error}", name=follower.connection.name, error=error)


def _do_nothing(master: Master, follower: FollowerState, command: Command) -> None:
    """There is nothing to do for a command."""


#: Every command class has an entry, so that none is forgotten.
COMMAND_HANDLERS: Mapping[type[Command], Callable[[Master, FollowerState, Any], None]] = {
    Replicate: Master._replicate,
    UserSync: Master._state,
    ClearUserSync: Master._state,
    FederationAck: Master._federation_ack,
    RemoteServerUp: Master._remote_server_up,
    RemovePusher: Master._event,
    InvalidateCache: Master._invalidate_cache,
    UserIp: Master._event,
    LockReleased: Master._event,
    # The session has dealt with these.
    Error: _do_nothing,
    Name: _do_nothing,
    Ping: _do_nothing,
    # Servers send these; a session refuses them from clients.
    Position: _do_nothing,
    Rdata: _do_nothing,
    Server: _do_nothing,
    # Markers of tests, and tasks of processes of Synapse on Redis.
    CancelTask: _do_nothing,
    NewActiveTask: _do_nothing,
    Sync: _do_nothing,
}
