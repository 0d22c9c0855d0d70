"""Acknowledgements of the ``federation`` stream by federation senders (FEDERATION_ACK)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Generic, TypeVar

from synrepl.core.errors import Refused
from synrepl.core.tokens import Token

#: Maximum number of senders per connection. A real worker is one sender.
MAX_SENDERS_OF_CONNECTION = 100

C = TypeVar("C")


class TooManySenders(Refused):
    """this connection acknowledges for {limit} federation senders; FEDERATION_ACK of further ones is ignored: every worker needs a connection of its own"""


class UnexpectedSender(Refused):
    """{sender!r} acknowledges the federation stream and is not one of federation_sender_instances; its FEDERATION_ACK does not count: name it there, the same in every process"""


class AckBeyondStream(Refused):
    """{sender!r} acknowledges the federation stream up to {token}, which is only at {position}; its FEDERATION_ACK is ignored: the stream has started again since, or the sender follows another server"""


class FederationAcks(Generic[C]):
    """The acknowledged token of each expected sender.

    A sender that is away is still waited for, since it will continue from its position.

    :param expected: names of the senders; empty while sending is not delegated
    :param position: returns the position of the stream
    :ivar on_change: called when a token has changed
    """

    def __init__(
        self,
        expected: Collection[str] = (),
        position: Callable[[], Token] = lambda: 0,
    ) -> None:
        self._position = position
        self._acked: dict[str, Token | None] = dict.fromkeys(expected)
        self._others: dict[C, set[str]] = {}
        self.on_change: Callable[[], object] = lambda: None

    def acknowledge(self, connection: C, instance: str | None, token: Token, name: str) -> None:
        """Handle a FEDERATION_ACK; a lower token than before means that the sender restarted.

        :param instance: the sender. None in dialects that do not name it; then the sender is the
            connection's ``name``, or the only sender that is expected
        :raises TooManySenders: it is ignored
        :raises UnexpectedSender: :raises AckBeyondStream: it does not count
        """
        sender = name if instance is None else instance
        if instance is None and sender not in self._acked and len(self._acked) == 1:
            (sender,) = self._acked
        if sender not in self._acked:
            others = self._others.setdefault(connection, set())
            if len(others) >= MAX_SENDERS_OF_CONNECTION and sender not in others:
                raise TooManySenders(limit=MAX_SENDERS_OF_CONNECTION)
            others.add(sender)
            raise UnexpectedSender(sender=sender)
        position = self._position()
        if token > position:
            raise AckBeyondStream(sender=sender, token=token, position=position)
        if token != self._acked[sender]:
            self._acked[sender] = token
            self.on_change()

    def connection_lost(self, connection: C) -> None:
        """Forget the unexpected senders of a connection."""
        self._others.pop(connection, None)

    def stream_restarted(self) -> None:
        """The stream has restarted, so earlier acknowledgements are void."""
        self._acked = dict.fromkeys(self._acked)

    @property
    def senders(self) -> Mapping[str, Token | None]:
        """The acknowledged token of each expected sender; None if it has acknowledged nothing."""
        return self._acked

    @property
    def unexpected_senders(self) -> set[str]:
        """Senders that acknowledge through some connection, but are not expected."""
        return set().union(*self._others.values())

    @property
    def floor(self) -> Token | None:
        """The token that all senders have acknowledged; None while one has acknowledged nothing."""
        tokens = [token for token in self._acked.values() if token is not None]
        return min(tokens) if tokens and len(tokens) == len(self._acked) else None

    @property
    def held_by(self) -> str | None:
        """The sender that has acknowledged the least; None without expected senders."""
        return min(self._acked, key=self._order, default=None)

    def _order(self, sender: str) -> tuple[bool, Token]:
        token = self._acked[sender]
        return token is not None, token or 0
