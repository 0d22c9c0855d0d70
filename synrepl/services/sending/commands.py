"""Commands that handlers can send to other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from synrepl.core.errors import InputError, Refused
from synrepl.core.tokens import Token
from synrepl.services.serving.client_relay import LONGEST_SERVER
from synrepl.services.serving.user_sync import LONGEST_USER
from synrepl.wire.codec import may_send, write_line
from synrepl.wire.commands import (
    ClearUserSync,
    Command,
    FederationAck,
    InvalidateCache,
    Key,
    RemoteServerUp,
    RemovePusher,
    UserIp,
    UserSync,
)
from synrepl.wire.dialects import CURRENT, LEGACY, MODERN, Dialect, Side
from synrepl.wire.errors import LocalProtocolError
from synrepl.wire.lines import DEFAULT_LINE_LIMIT

#: The dialects whose commands a master can carry out itself: together they have all.
EVERY_DIALECT = (CURRENT, MODERN, LEGACY)

#: Exclusive upper bound of a time, in seconds since the epoch (the year 5138).
_MAX_SECONDS = 1e11


class BadCommand(InputError):
    """{what} cannot be sent: {reason}"""


class CommandNotInDialect(Refused):
    """{verb} cannot be sent: there is no such command in the {dialect} dialect, which this process speaks; see the table of dialects in docs/protocol.md"""


class CommandSink(Protocol):
    """Sends commands, or carries them out."""

    def send(self, command: Command) -> None:
        """Take a command that has been checked.

        :raises Refused: :raises Unavailable: it is not sent
        """


class Commands:
    """Sends commands that are not about streams; handlers get it as ``Access.commands``.

    On a worker they go to the master, or to all processes over Redis. On a master they
    are carried out as if a client had sent them: its own handlers get them as well.
    There are no answers: every method returns at once.

    Syncing users and the last acknowledged token are states. They are kept, and repeated
    after the connection was lost. The other commands are events: without a connection they
    are queued, and an event on its way when a connection is lost is lost, too.

    Every method raises :class:`BadCommand` for a value that cannot be sent.

    :param instance: the name of this process
    :param dialects: of the connection; the first that has a command is used
    :param seconds: the time, in seconds since the epoch
    """

    def __init__(
        self,
        instance: str,
        sink: CommandSink,
        seconds: Callable[[], float],
        dialects: Sequence[Dialect] = EVERY_DIALECT,
    ) -> None:
        self._instance = instance
        self._sink = sink
        self._seconds = seconds
        self._dialects = dialects

    def user_sync(
        self, user: str, syncing: bool, *, device: str | None = None, at: float | None = None
    ) -> None:
        """A user has started, or stopped, syncing through this process (USER_SYNC).

        :param device: only Redis carries it; elsewhere a user syncs until the last device stops
        :param at: time of the last sync, in seconds since the epoch; now by default
        :raises TooManySyncingUsers: a limit has been reached; the user is not added
        """
        command = UserSync(self._instance, user, device, syncing, self._millis("USER_SYNC", at))
        self._check(command, (CURRENT, *self._dialects))
        length = len(user) + (0 if device is None else len(device) + 1)
        if length > LONGEST_USER:
            reason = (
                f"user and device have {length} characters, at most {LONGEST_USER} are accepted"
            )
            raise BadCommand(what="USER_SYNC", reason=reason)
        self._sink.send(command)

    def clear_user_syncs(self) -> None:
        """No user syncs through this process any more (CLEAR_USER_SYNC).

        In the legacy dialect, which has no such command, it is one USER_SYNC per user.
        """
        self._sink.send(ClearUserSync(self._instance))

    def federation_ack(self, token: Token) -> None:
        """This process has sent all of the ``federation`` stream up to ``token`` (FEDERATION_ACK).

        Facts that all ``federation_sender_instances`` have acknowledged are dropped from the
        stream. When the stream restarts at a lower token, earlier acknowledgements are
        forgotten.
        """
        self._send(FederationAck(self._instance, token))

    def remove_pusher(self, app_id: str, push_key: str, user: str) -> None:
        """A push gateway has rejected a pusher, which must be deleted (REMOVE_PUSHER).

        :raises CommandNotInDialect: over Redis, whose dialect lacks it
        :raises TooManyUnsent: too many events wait for a connection
        """
        self._send(RemovePusher(app_id, push_key, user))

    def remote_server_up(self, server: str) -> None:
        """Tell all other processes that a remote server may be back (REMOTE_SERVER_UP).

        :raises TooManyUnsent: too many events wait for a connection
        """
        command = RemoteServerUp(server)
        self._check(command, self._dialects)
        if len(server) > LONGEST_SERVER:
            reason = f"the name has {len(server)} characters, at most {LONGEST_SERVER} are accepted"
            raise BadCommand(what="REMOTE_SERVER_UP", reason=reason)
        self._sink.send(command)

    def user_ip(
        self,
        user: str,
        access_token: str,
        ip: str,
        user_agent: str,
        device: str | None = None,
        *,
        at: float | None = None,
    ) -> None:
        """A user was seen at an address (USER_IP).

        :param at: when, in seconds since the epoch; now by default
        :raises TooManyUnsent: too many events wait for a connection
        """
        millis = self._millis("USER_IP", at)
        self._send(UserIp(user, access_token, ip, user_agent, device, millis))

    def invalidate_cache(self, cache: str, keys: Iterable[Key]) -> None:
        """Ask the master to drop an entry of a cache everywhere (INVALIDATE_CACHE).

        Only legacy and transitional masters take it. To change caches of synrepl's
        processes, use ``Access.changes``.

        :raises CommandNotInDialect: in other dialects
        :raises TooManyUnsent: too many events wait for a connection
        """
        self._send(InvalidateCache(cache, tuple(keys)))

    def _send(self, command: Command) -> None:
        self._check(command, self._dialects)
        self._sink.send(command)

    def _check(self, command: Command, dialects: Sequence[Dialect]) -> None:
        """Refuse a command that cannot be parsed again, or that no dialect has.

        :raises BadCommand: :raises CommandNotInDialect:
        """
        having = [dialect for dialect in dialects if may_send(command, dialect, Side.CLIENT)]
        if not having:
            raise CommandNotInDialect(verb=command.verb, dialect=self._dialects[0].name)
        try:
            length = len(write_line(command, having[0]))
        except LocalProtocolError as error:
            facts = error.facts
            what = f"{facts.get('where', command.verb)} {facts.get('value', '')}".rstrip()
            raise BadCommand(what=what, reason=facts.get("reason", error)) from None
        if length > DEFAULT_LINE_LIMIT:
            reason = f"its line has {length} bytes, peers accept {DEFAULT_LINE_LIMIT}"
            raise BadCommand(what=command.verb, reason=reason)

    def _millis(self, verb: str, at: float | None) -> int:
        seconds = self._seconds() if at is None else at
        if not isinstance(seconds, (int, float)) or not 0 <= seconds < _MAX_SECONDS:
            reason = "a time in seconds since the epoch is needed"
            raise BadCommand(what=f"{verb} at {seconds!r}", reason=reason)
        return round(seconds * 1000)
