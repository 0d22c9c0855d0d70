"""How far federation senders have dealt with the ``federation`` stream (FEDERATION_ACK)."""

from __future__ import annotations

from typing import Generic, TypeVar

from synrepl.core.errors import Refused
from synrepl.core.tokens import Token

#: Maximum number of senders per connection. A real worker is one sender.
MAX_SENDERS_OF_CONNECTION = 100

C = TypeVar("C")


class TooManySenders(Refused):
    """this connection acknowledges for {limit} federation senders; FEDERATION_ACK of further ones is ignored: every worker needs a connection of its own"""


class FederationAcks(Generic[C]):
    """The acknowledged token of each sender that is connected."""

    def __init__(self) -> None:
        self._acked: dict[C, dict[str | None, Token]] = {}

    def acknowledge(self, connection: C, instance: str | None, token: Token) -> None:
        """Handle a FEDERATION_ACK; a lower token than before means that the sender restarted.

        :raises TooManySenders: it is ignored
        """
        acked = self._acked.setdefault(connection, {})
        if len(acked) >= MAX_SENDERS_OF_CONNECTION and instance not in acked:
            raise TooManySenders(limit=MAX_SENDERS_OF_CONNECTION)
        acked[instance] = token

    def connection_lost(self, connection: C) -> None:
        """A sender that is gone no longer holds the floor."""
        self._acked.pop(connection, None)

    @property
    def floor(self) -> Token | None:
        """Rows at or below this token may be dropped; None while nobody has acknowledged any."""
        return min((min(acked.values()) for acked in self._acked.values()), default=None)
