"""Connections to Redis for subscribing and publishing, on txredisapi's protocols.

They are made with ``charset=None, convertNumbers=False``: by default txredisapi
converts messages that look like numbers, and decodes the others. The password is
not passed to txredisapi, which gives up for good when a login fails: a Redis that
is still loading its users refuses logins for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import txredisapi
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import connectProtocol
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from synrepl.adapters.redis.address import RedisAddress
from synrepl.core.clock import DelayedCall, Scheduler
from synrepl.core.errors import Unavailable
from synrepl.wire.heartbeat import Heartbeat, HeartbeatAction

#: Seconds of silence after which a PING is sent, and after which the connection is aborted. A
#: dead connection has to be noticed within 15 s. TCP keepalive would not notice a server that hangs.
PING_INTERVAL_S = 4.0
SILENCE_S = 10.0

#: Maximum number of bytes queued for a server that does not read.
MAX_QUEUED_BYTES = 2**26

_PING = b"*1\r\n$4\r\nPING\r\n"


class RedisAway(Unavailable):
    """Redis at {where} cannot be used: {reason}"""


class RedisConnection(txredisapi.RedisProtocol):  # type: ignore[misc]
    """A connection with a heartbeat.

    :ivar gone: fires with the reason when the connection is lost
    :ivar too_slow: whether it ended because one side did not read what the other sent
    """

    transport: Any

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(charset=None, convertNumbers=False)
        self._scheduler = scheduler
        self._heart = Heartbeat(scheduler.seconds(), PING_INTERVAL_S, SILENCE_S)
        self._timer: DelayedCall | None = None
        self._fault: str | None = None
        self.too_slow = False
        self.gone: Deferred[str] = Deferred()

    async def log_in(self, address: RedisAddress) -> None:
        """Authenticate, select the database and check the role.

        :raises RedisAway: the server refuses, or the connection is lost
        """
        try:
            if address.password is not None:
                await self.auth(address.password, address.username)
            if address.database:
                await self.select(address.database)
            if address.must_be_master and (await self.role())[0] != b"master":
                raise RedisAway(where=address, reason="it is a replica")
        except txredisapi.RedisError as error:
            raise RedisAway(where=address, reason=self._fault or error) from None

    async def connect(self, reactor: Any, address: RedisAddress) -> None:
        """Connect and log in.

        :raises RedisAway: it cannot be reached, or refuses
        """
        try:
            await connectProtocol(address.endpoint(reactor), self)
        except CancelledError:
            raise
        except Exception as error:  # endpoints have no common kind of failure
            raise RedisAway(where=address, reason=error) from None
        await self.log_in(address)

    def abort(self, why: str) -> None:
        """Abort the connection."""
        self._fault = self._fault or why
        if self.transport is not None:
            self.transport.abortConnection()

    def ask(self) -> None:
        """Send a PING."""
        self.ping().addErrback(lambda failure: None)

    # -- Protocol -------------------------------------------------------------------------

    def connectionMade(self) -> None:
        """Begin to watch the connection."""
        super().connectionMade()
        self._heart.received(self._scheduler.seconds())
        self._heart.arm()
        self._watch()

    def dataReceived(self, data: bytes, unpause: bool = False) -> None:
        """Parse input; any input counts as a sign of life."""
        self._heart.received(self._scheduler.seconds())
        try:
            super().dataReceived(data, unpause)
        except txredisapi.InvalidData as error:
            self.abort(f"it does not speak as Redis does: {error}")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Fire :attr:`gone`, and fail pending requests."""
        self._stop_watching()
        # Set first: pending requests fail next, and txredisapi does not give them a reason.
        self._fault = self._fault or reason.getErrorMessage()
        super().connectionLost(reason)
        self.gone.callback(self._fault)

    # -- heartbeat -----------------------------------------------------------------------

    def _watch(self) -> None:
        now = self._scheduler.seconds()
        beat = self._heart.check(now)
        if beat is HeartbeatAction.GIVE_UP:
            self.abort(f"nothing was heard for {SILENCE_S:g} s")
            return
        if beat is HeartbeatAction.PING:
            self._heart.sent(now)
            self.ask()
        self._timer = self._scheduler.callLater(max(0.0, self._heart.due - now), self._watch)

    def _stop_watching(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()


class RedisSubscriber(RedisConnection, txredisapi.SubscriberProtocol):  # type: ignore[misc]
    """Receives the messages of channels.

    :param on_messages: gets the messages of one read of the socket, in order
    """

    def __init__(
        self, scheduler: Scheduler, on_messages: Callable[[Sequence[bytes]], object]
    ) -> None:
        super().__init__(scheduler)
        self._deliver = on_messages
        self._messages: list[bytes] = []
        #: When reading was last paused, and when it was resumed.
        self._paused_at: float | None = None
        self._resumed_at: float | None = None

    async def listen(self, channels: Sequence[str], address: RedisAddress) -> None:
        """Subscribe; returns once Redis has confirmed it.

        :raises RedisAway: the server refuses, or the connection is lost
        """
        try:
            await self.subscribe(channels)
        except txredisapi.RedisError as error:
            raise RedisAway(where=address, reason=self._fault or error) from None

    def messageReceived(self, pattern: bytes | None, channel: bytes, message: bytes) -> None:
        """Collect a message until the whole read is parsed."""
        self._messages.append(message)

    def dataReceived(self, data: bytes, unpause: bool = False) -> None:
        """Parse input, and hand on its messages together."""
        super().dataReceived(data, unpause)
        if self._messages:
            messages, self._messages = self._messages, []
            self._deliver(messages)

    def pause_reading(self) -> None:
        """Stop reading; the heartbeat stops too."""
        self._stop_watching()
        self._paused_at, self._resumed_at = self._scheduler.seconds(), None
        self.transport.pauseProducing()

    def resume_reading(self) -> None:
        """Resume reading."""
        self._resumed_at = self._scheduler.seconds()
        self._heart.received(self._resumed_at)
        self.transport.resumeProducing()
        self._stop_watching()
        self._watch()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Blame a pause for the loss of a connection that Redis ended during or just after it."""
        now = self._scheduler.seconds()
        paused_at, resumed_at = self._paused_at, self._resumed_at
        resting = resumed_at is None or now - resumed_at < SILENCE_S
        if self._fault is None and paused_at is not None and resting:
            self.too_slow = True
            paused_s = (now if resumed_at is None else resumed_at) - paused_at
            self._fault = (
                f"Redis ended the connection when this process had not read for {paused_s:.1f} s:"
                " more waited for it than client-output-buffer-limit allows for pubsub"
            )
        super().connectionLost(reason)


class RedisPublisher(RedisConnection):
    """Publishes messages.

    Messages are written in chunks, and replies are only checked for errors: txredisapi's
    own ``publish`` makes two Deferreds and one write per message. An error reply means a
    lost message, so the connection is aborted; after the next one is made, positions are
    announced again, and followers see the gap.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._heads: dict[str, bytes] = {}
        #: The transport's buffer is full, so messages are queued here.
        self.full = False
        self._room: list[Deferred[None]] = []
        self._queue: list[bytes] = []
        self._queued = 0
        self._publishing = False

    def begin(self) -> None:
        """Switch to publishing: from now on only :meth:`publish_all` writes."""
        self._publishing = True
        self.transport.registerProducer(_BackPressure(self), True)

    def publish_all(self, channel: str, lines: Iterable[bytes]) -> None:
        """Publish lines, one message each, in one write."""
        head = self._heads.get(channel)
        if head is None:
            name = channel.encode()
            head = b"*3\r\n$7\r\nPUBLISH\r\n$%d\r\n%b\r\n$" % (len(name), name)
            self._heads[channel] = head
        data = b"".join([b"%b%d\r\n%b\r\n" % (head, len(line), line) for line in lines])
        self._heart.sent(self._scheduler.seconds())
        if not self.full:
            self.transport.write(data)
        elif self._fault is None:
            self._queue.append(data)
            self._queued += len(data)
            if self._queued > MAX_QUEUED_BYTES:
                self._queue.clear()
                self.too_slow = True
                self.abort(f"more than {MAX_QUEUED_BYTES} bytes wait, and it does not read")

    def ask(self) -> None:
        """Send a PING while publishing; during the login, commands and replies suffice."""
        if self._publishing:
            self.transport.write(_PING)

    def replyReceived(self, reply: object) -> None:
        """Handle a reply; that to a message only matters if it is an error."""
        if not self._publishing:
            super().replyReceived(reply)
        elif isinstance(reply, Exception):
            self.abort(f"it refuses what is said: {reply}")

    async def room(self) -> None:
        """Wait until the transport has room, or the connection is lost."""
        if self.full:
            waiting: Deferred[None] = Deferred()
            self._room.append(waiting)
            await waiting

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Wake the callers of :meth:`room`."""
        super().connectionLost(reason)
        self.full = False
        self._release()

    def end(self) -> None:
        """Close once everything has been written."""
        if self.transport is not None:
            self._set_full(False)
            self.transport.unregisterProducer()
            self.transport.loseConnection()

    def _set_full(self, full: bool) -> None:
        self.full = full
        if not full and self._queue:
            data = b"".join(self._queue)
            self._queue.clear()
            self._queued = 0
            self.transport.write(data)  # this may fill the buffer again
        if not self.full:
            self._release()

    def _release(self) -> None:
        while self._room and not self.full:
            self._room.pop().callback(None)


@implementer(IPushProducer)
class _BackPressure:
    """The transport's producer, which learns when its buffer is full.

    It is not the protocol itself, because pausing that stops *reading*.
    """

    def __init__(self, publisher: RedisPublisher) -> None:
        self._publisher = publisher

    def pauseProducing(self) -> None:
        self._publisher._set_full(True)

    def resumeProducing(self) -> None:
        self._publisher._set_full(False)

    def stopProducing(self) -> None:
        """The transport is gone; connectionLost follows."""
