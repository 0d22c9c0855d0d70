"""How far federation senders have dealt with the ``federation`` stream (FEDERATION_ACK)."""

from __future__ import annotations

from typing import Generic, TypeVar

from synrepl.core.tokens import Token

C = TypeVar("C")


class FederationAcks(Generic[C]):
    """The acknowledged token of each sender that is connected."""

    def __init__(self) -> None:
        self._acked: dict[tuple[C, str | None], Token] = {}

    def acknowledge(self, connection: C, instance: str | None, token: Token) -> None:
        """Take in a FEDERATION_ACK; a lower token than before is a sender that started again."""
        self._acked[connection, instance] = token

    def connection_lost(self, connection: C) -> None:
        """A sender that is gone no longer holds the floor."""
        for key in [key for key in self._acked if key[0] == connection]:
            del self._acked[key]

    @property
    def floor(self) -> Token | None:
        """Rows at or below this token may be dropped; None while nobody has acknowledged any."""
        return min(self._acked.values(), default=None)
