"""Sends the commands of a worker to its master, or to all processes over Redis."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from synrepl.core.clock import DelayedCall, Promise, Scheduler
from synrepl.core.errors import Unavailable
from synrepl.core.log import Logger
from synrepl.core.slices import Slices
from synrepl.core.tokens import Token
from synrepl.services.serving.user_sync import MAX_USERS_OF_CONNECTION, TooManySyncingUsers
from synrepl.wire.codec import may_send
from synrepl.wire.commands import ClearUserSync, Command, FederationAck, UserSync
from synrepl.wire.dialects import Dialect, Side
from synrepl.wire.errors import LocalProtocolError

#: Maximum number of events that wait for a connection, or for one that accepts more.
MAX_EVENTS = 1_000

#: Minimum number of seconds between two repetitions of all states on Redis.
REPEAT_S = 5.0

#: Maximum number of seconds that an orderly stop waits for the last commands to be written.
STOP_S = 2.0

#: Cost of one command, in units of :class:`Slices`.
_COST = 1


class TooManyUnsent(Unavailable):
    """{verb} is not sent: {limit} commands already wait for the connection to come back, or to accept more; send it again later"""


class CommandPeer(Protocol):
    """The connection that commands are sent over."""

    def send(self, command: Command) -> None:
        """Send a command; dropped if the connection is closing."""

    async def room(self) -> bool | None:
        """Wait until the connection accepts more, or is lost; False if it never will."""


class OutgoingCommands:
    """Sends commands at the pace of the connection, and repeats states on a new one.

    States are the users that sync through this process, and the last acknowledged token. Only
    the latest value of each waits to be sent, so their number is bounded by that of the users.
    A new TCP connection gets all of them, since a master forgets the states of a lost one. On
    Redis, a new connection first clears what others remember of this process, and all states
    are repeated when another process joins.

    :param instance: the name of this process
    :param dialect: dialect of the connection
    :param log: logs commands that cannot be encoded after all
    :param clears_first: on Redis, clear the states of a former process of this name
    """

    def __init__(
        self,
        scheduler: Scheduler,
        slices: Slices,
        instance: str,
        dialect: Dialect,
        log: Logger,
        *,
        clears_first: bool = True,
    ) -> None:
        self._scheduler = scheduler
        self._slices = slices
        self._instance = instance
        self._log = log
        self._names_devices = "device" not in dialect.layouts[b"USER_SYNC"][0].absent
        self._can_clear = may_send(ClearUserSync(instance), dialect, Side.CLIENT)
        self._clears_first = clears_first and not dialect.has_sides
        self._peer: CommandPeer | None = None
        self._busy = False
        self._stopped = False
        self._idle: list[Promise[None]] = []
        # Syncing users: "user" or "user device", as they are named on the wire. (Dictionaries of
        # strings and numbers cost the garbage collector nothing.)
        self._syncing: dict[str, int] = {}
        self._devices: dict[str, dict[str, None]] = {}  # where the wire names none
        self._count = 0
        #: Users that are syncing as far as the peer knows.
        self._sent: set[str] = set()
        #: Users to be sent, with the time of an end.
        self._pending: dict[str, int] = {}
        self._clear = False
        self._ack: Token | None = None
        self._ack_pending = False
        self._ack_awaits_position = False
        self._events: deque[Command] = deque()
        self._repeated_at = scheduler.seconds()
        self._repeat: DelayedCall | None = None

    @property
    def syncing_users(self) -> int:
        """Number of users (with devices: of users and devices) that sync through this process."""
        return self._count

    @property
    def acknowledged(self) -> Token | None:
        """The token of ``federation`` that was acknowledged last."""
        return self._ack

    @property
    def unsent(self) -> int:
        """Number of commands that wait to be sent."""
        return len(self._events) + len(self._pending) + self._clear + self._ack_pending

    # -- for handlers -------------------------------------------------------------------

    def send(self, command: Command) -> None:
        """Send a command now, or as soon as the connection allows it.

        :raises TooManySyncingUsers: :raises TooManyUnsent: it is not sent
        """
        if self._stopped:
            return
        if isinstance(command, UserSync):
            self._user_sync(command)
        elif isinstance(command, ClearUserSync):
            self._clear_users()
        elif isinstance(command, FederationAck):
            self._ack, self._ack_pending = command.token, True
            self._ack_awaits_position = False
        elif len(self._events) >= MAX_EVENTS:
            raise TooManyUnsent(verb=command.verb, limit=MAX_EVENTS)
        else:
            self._events.append(command)
        self._start()

    async def stop(self) -> None:
        """End the syncing of all users, and wait briefly until all commands are sent."""
        if self._stopped:
            return
        self._clear_users()
        self._stopped = True
        self._cancel_repeat()
        self._start()
        if self._busy:
            idle: Promise[None] = self._scheduler.promise()
            self._idle.append(idle)
            timeout = self._scheduler.callLater(STOP_S, self._release)
            await idle
            if timeout.active():
                timeout.cancel()
        self._peer = None

    # -- the connection -----------------------------------------------------------------

    def connected(self, peer: CommandPeer) -> None:
        """Start to send, beginning with all states."""
        self._peer = peer
        self._sent = set()
        self._pending = dict(self._syncing)
        self._clear = self._clears_first
        self._ack_pending = False
        self._ack_awaits_position = self._ack is not None
        self._repeated_at = self._scheduler.seconds()
        self._start()

    def disconnected(self) -> None:
        """Stop sending; events on their way may be lost."""
        self._peer = None
        self._cancel_repeat()

    @property
    def awaits_position(self) -> bool:
        """Whether :meth:`position` has to be called."""
        return self._ack is not None

    def position(self, token: Token) -> None:
        """The ``federation`` stream is at ``token``.

        A position below the acknowledged token means that the stream has restarted. Tokens up to
        there will be used again, so repeating the acknowledgement would lose facts.
        """
        if self._ack is None:
            return
        if token < self._ack:
            self._ack, self._ack_pending = None, False
        elif self._ack_awaits_position:
            self._ack_pending = True
        self._ack_awaits_position = False
        self._start()

    def process_joined(self) -> None:
        """Repeat all states for a process that has joined on Redis, but not too often."""
        if self._peer is None or self._repeat is not None or self._stopped:
            return
        if self._syncing or self._ack is not None:
            wait = max(0.0, self._repeated_at + REPEAT_S - self._scheduler.seconds())
            self._repeat = self._scheduler.callLater(wait, self._repeat_states)

    def _repeat_states(self) -> None:
        self._repeat = None
        self._repeated_at = self._scheduler.seconds()
        if self._pending:
            self._pending.update(self._syncing)
        else:  # a copy takes a fifth of the time
            self._pending = dict(self._syncing)
        self._ack_pending = self._ack is not None
        self._start()

    def _cancel_repeat(self) -> None:
        repeat, self._repeat = self._repeat, None
        if repeat is not None and repeat.active():
            repeat.cancel()

    # -- users ----------------------------------------------------------------------------

    def _user_sync(self, command: UserSync) -> None:
        device = command.device or ""
        key = command.user
        if self._names_devices and device:
            key = f"{command.user} {device}"
        devices = self._devices.get(key)
        known = key in self._syncing and (devices is None or device in devices)
        if command.syncing:
            if not known:
                self._check_room(key)
                self._count += 1
                if not self._names_devices:
                    self._devices.setdefault(key, {})[device] = None
            self._syncing[key] = self._pending[key] = command.last_sync_ms
            return
        if not known:
            return
        self._count -= 1
        if devices is not None:
            del devices[device]
            if devices:  # other devices of this user still sync
                return
            del self._devices[key]
        del self._syncing[key]
        if key in self._sent:
            self._pending[key] = command.last_sync_ms
        else:
            self._pending.pop(key, None)

    def _check_room(self, key: str) -> None:
        most = MAX_USERS_OF_CONNECTION
        if self._count >= most or (len(self._sent) >= most and key not in self._sent):
            raise TooManySyncingUsers(limit=most, whose="this process")

    def _clear_users(self) -> None:
        """Forget all users; the peer gets their end if it knows any."""
        self._syncing, self._devices, self._count = {}, {}, 0
        if self._can_clear:
            self._clear = self._clear or bool(self._sent)
            self._sent, self._pending = set(), {}
        else:
            now = round(self._scheduler.seconds() * 1000)
            self._pending = dict.fromkeys(self._sent, now)

    # -- sending --------------------------------------------------------------------------

    def _start(self) -> None:
        if not self._busy and self._peer is not None and self.unsent:
            self._busy = True
            self._scheduler.spawn("send commands", self._run())

    async def _run(self) -> None:
        try:
            while (peer := self._peer) is not None and self.unsent:
                if await peer.room() is False:  # closing; the commands wait for the next connection
                    return
                await self._slices.step(_COST)
                if peer is self._peer:
                    self._send_next(peer)
        finally:
            self._busy = False
            self._release()

    def _send_next(self, peer: CommandPeer) -> None:
        command = self._next()
        if command is None:
            return
        try:
            peer.send(command)
        except LocalProtocolError as error:
            self._log.warn("{verb} is not sent: {error}", verb=command.verb, error=error)

    def _next(self) -> Command | None:
        if self._clear:
            self._clear = False
            return ClearUserSync(self._instance)
        if self._ack_pending and self._ack is not None:
            self._ack_pending = False
            return FederationAck(self._instance, self._ack)
        if self._events:
            return self._events.popleft()
        return self._next_user() if self._pending else None

    def _next_user(self) -> UserSync | None:
        # The last one first: taking the first out of a large dictionary is slow.
        key, ended_ms = self._pending.popitem()
        user, _, device = key.partition(" ")
        started_ms = self._syncing.get(key)
        if started_ms is not None:
            self._sent.add(key)
            return UserSync(self._instance, user, device or None, True, started_ms)
        if key not in self._sent:
            return None
        self._sent.discard(key)
        return UserSync(self._instance, user, device or None, False, ended_ms)

    def _release(self) -> None:
        idle, self._idle = self._idle, []
        for promise in idle:
            promise.callback(None)
