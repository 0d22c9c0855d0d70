"""What a master does with the commands of its clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Range, Token
from synrepl.services.announcing.announce import Log
from synrepl.services.announcing.lines import LineEncoder
from synrepl.services.announcing.publish import Publisher
from synrepl.services.announcing.stream_state import StreamState
from synrepl.services.following.source import Source
from synrepl.services.serving.connection import Connection, audience
from synrepl.services.serving.federation_acks import FederationAcks
from synrepl.services.serving.leftover import leftover
from synrepl.services.serving.user_sync import UserSyncs
from synrepl.streams.catalogue import Catalogue, UnknownStream
from synrepl.streams.definition import Stream
from synrepl.wire.closing import CloseReason
from synrepl.wire.codec import may_send
from synrepl.wire.commands import (
    ClearUserSync,
    Command,
    FederationAck,
    InvalidateCache,
    LockReleased,
    Position,
    RemoteServerUp,
    RemovePusher,
    Replicate,
    UserIp,
    UserSync,
)
from synrepl.wire.dialects import Side

#: Rows of one page in the catch-up lane.
PAGE_ROWS = 2_000

#: Told of what clients say that is not about streams: (name of the connection, command).
Events = Callable[[str, Command], None]


class FollowerState:
    """What the master knows of one connection.

    :ivar streams: the streams in the live lane; None for all of them
    :ivar catching_up: streams in the catch-up lane, each with the number of the
        REPLICATE that is being answered
    """

    def __init__(self, connection: Connection, since: float) -> None:
        self.connection = connection
        self.since = since
        self.streams: set[str] | None = set()
        self.catching_up: dict[str, int] = {}
        self.received: dict[str, int] = {}


class Master:
    """Answers clients: positions, catch-up, relays, and events for whoever handles them.

    :param states: positions of all streams, by name
    :param source: where missed facts are read from
    :param events: told of commands that are for handlers
    :param invalidate: takes what a legacy worker asks to be invalidated; None where the
        ``caches`` stream is not written
    """

    def __init__(
        self,
        scheduler: Scheduler,
        catalogue: Catalogue,
        states: Mapping[str, StreamState],
        publisher: Publisher,
        source: Source,
        events: Events,
        log: Log,
        invalidate: Callable[[InvalidateCache], None] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._catalogue = catalogue
        self._states = states
        self._publisher = publisher
        self._source = source
        self._events = events
        self._log = log
        self._invalidate = invalidate
        self._answers = 0
        self.followers: dict[Connection, FollowerState] = {}
        self.user_syncs: UserSyncs[Connection] = UserSyncs(
            lambda connection, command: events(connection.name, command)
        )
        self.federation_acks: FederationAcks[Connection] = FederationAcks()
        self.commands: dict[str, int] = {}
        self.closed: dict[str, int] = {}

    # -- a connection's life ----------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        """A client has connected."""
        self.followers[connection] = FollowerState(connection, self._scheduler.seconds())

    def received(self, connection: Connection, commands: Sequence[Command]) -> None:
        """A client said something."""
        follower = self.followers[connection]
        for command in commands:
            self.commands[command.verb] = self.commands.get(command.verb, 0) + 1
            handle = _HANDLERS.get(type(command))
            if handle is not None:
                handle(self, follower, command)

    def disconnected(self, connection: Connection, reason: CloseReason) -> None:
        """A connection is gone."""
        self.closed[reason] = self.closed.get(reason, 0) + 1
        self._publisher.unsubscribe(connection)
        self.followers.pop(connection, None)
        self.user_syncs.connection_lost(connection)
        self.federation_acks.connection_lost(connection)

    def shut_down(self) -> None:
        """Tell every client and close."""
        for connection in list(self.followers):
            connection.close(CloseReason.SHUTTING_DOWN, "server shutting down")

    # -- REPLICATE ----------------------------------------------------------------------

    def _replicate(self, follower: FollowerState, command: Replicate) -> None:
        if command.stream is None:
            self._answer_positions(follower)
        elif command.stream == "ALL":
            generation = audience(follower.connection).generation
            for stream in self._catalogue.known_to(generation):
                self._answer_linear(follower, stream, command.token)
        else:
            try:
                stream = self._catalogue[command.stream]
            except UnknownStream as error:
                follower.connection.close(CloseReason.REPLICATE_REFUSED, str(error))
                return
            self._answer_linear(follower, stream, command.token)

    def _answer_positions(self, follower: FollowerState) -> None:
        """A modern client: where every writer of every stream stands, then live.

        Only the one who asked is answered. RDATA comes after its POSITION in the
        same turn, so nothing falls between.
        """
        connection = follower.connection
        whose = audience(connection)
        self._publisher.subscribe(connection, whose, None)
        follower.streams = None
        encoder = self._publisher.encoder(whose)
        for stream in self._catalogue.known_to(whose.generation):
            self._tell(connection, encoder, stream)

    def _tell(self, connection: Connection, encoder: LineEncoder, stream: Stream) -> None:
        """Where the writers of a stream are; whoever has less of them has missed something."""
        for writer, position in self._states[stream.name].worth_telling():
            connection.write_live(encoder.position(stream, writer, position, position))

    def _answer_linear(
        self, follower: FollowerState, stream: Stream, token: Token | None, asked: bool = True
    ) -> None:
        """A legacy client: every missed row, then POSITION, then live.

        Rows that come up meanwhile wait in the table, not in memory: the lane
        reads on until it has reached the present.

        :param asked: a client that has not asked takes the lines for live ones, so
            they must look like those: a token that is repeated would be a duplicate
        """
        self._answers += 1
        follower.catching_up[stream.name] = self._answers
        self._subscribe_linear(follower)
        current = self._states[stream.name].linear
        after = current if token is None else max(0, token)
        self._scheduler.spawn(
            f"catch up {follower.connection.name} on {stream.name}",
            self._catch_up(follower, stream, after, self._answers, asked),
        )

    async def _catch_up(
        self, follower: FollowerState, stream: Stream, after: Token, answer: int, asked: bool
    ) -> None:
        connection, state = follower.connection, self._states[stream.name]
        encoder = self._publisher.encoder(audience(connection))
        try:
            while after < state.linear:
                span = Range(after, state.linear)
                page = await leftover(
                    self._source, stream, span, PAGE_ROWS, connection.name, self._log
                )
                if asked or not page.facts:
                    chunks = encoder.catch_up(stream, page.facts)
                else:
                    chunks = encoder.live(stream, "", after, page.facts[-1].token, page.facts)
                for chunk in chunks:
                    if follower.catching_up.get(stream.name) != answer:
                        return  # asked again meanwhile
                    if not await connection.write_catch_up(chunk):
                        return
                after = page.upto
        except SynreplError as error:
            connection.close(CloseReason.REPLICATE_REFUSED, str(error))
            return
        if connection in self.followers and follower.catching_up.get(stream.name) == answer:
            del follower.catching_up[stream.name]
            assert follower.streams is not None
            follower.streams.add(stream.name)
            self._subscribe_linear(follower)
            connection.send(Position(stream.name, None, None, state.linear))

    def _subscribe_linear(self, follower: FollowerState) -> None:
        if follower.streams is None:
            follower.streams = set()
        live = frozenset(follower.streams - follower.catching_up.keys())
        self._publisher.subscribe(follower.connection, audience(follower.connection), live)

    def left_behind(self, connection: Connection, stream: Stream, after: Token) -> None:
        """The live lane could not hold what a slow writer held up: back to the catch-up lane."""
        self._answer_linear(self.followers[connection], stream, after, asked=False)

    def started_again(self, stream: Stream) -> None:
        """What came of a stream in memory is gone: tell everybody where it is now, in every view."""
        self._publisher.flush()
        for connection, follower in list(self.followers.items()):
            if follower.streams is None:
                encoder = self._publisher.encoder(audience(connection))
                if encoder.knows(stream):
                    self._tell(connection, encoder, stream)
            elif stream.name in follower.streams:
                self._answer_linear(follower, stream, None)

    def pass_on(self, command: Command, but: Connection | None = None) -> None:
        """Say a command to all clients whose dialect has it for a server to say.

        :param but: not to this one, which said it
        """
        for connection in list(self.followers):
            dialect = connection.dialect
            if connection is but or dialect is None:
                continue
            if may_send(command, dialect, Side.SERVER):
                connection.send(command)

    # -- everything else ------------------------------------------------------------------

    def _user_sync(self, follower: FollowerState, command: UserSync) -> None:
        self.user_syncs.user_sync(follower.connection, command)
        self._event(follower, command)

    def _clear_user_sync(self, follower: FollowerState, command: ClearUserSync) -> None:
        self.user_syncs.clear(follower.connection, command)
        self._event(follower, command)

    def _federation_ack(self, follower: FollowerState, command: FederationAck) -> None:
        self.federation_acks.acknowledge(follower.connection, command.instance, command.token)
        self._event(follower, command)

    def _remote_server_up(self, follower: FollowerState, command: RemoteServerUp) -> None:
        self.pass_on(command, but=follower.connection)
        self._event(follower, command)

    def _invalidate_cache(self, follower: FollowerState, command: InvalidateCache) -> None:
        if self._invalidate is not None:
            try:
                self._invalidate(command)
            except SynreplError as error:
                # It ends with this connection, so that the worker knows.
                follower.connection.close(CloseReason.INVALIDATION_REFUSED, str(error))
                return
        self._event(follower, command)

    def _event(self, follower: FollowerState, command: Command) -> None:
        self._events(follower.connection.name, command)


_HANDLERS: Mapping[type[Command], Callable[[Master, FollowerState, Any], None]] = {
    Replicate: Master._replicate,
    UserSync: Master._user_sync,
    ClearUserSync: Master._clear_user_sync,
    FederationAck: Master._federation_ack,
    RemoteServerUp: Master._remote_server_up,
    RemovePusher: Master._event,
    InvalidateCache: Master._invalidate_cache,
    UserIp: Master._event,
    LockReleased: Master._event,
}
