"""Checks every message on the bus (R2, and no undetectable gaps)."""

from __future__ import annotations

from simulator.truth import Truth, Violations
from synrepl.core.tokens import Token

#: A writer of a stream.
Key = tuple[str, str]


class BusChecker:
    """Reads messages in the order in which Redis forwards them, without the product's codec.

    The positions of each sender must only increase. Several senders may announce the same writer in
    turn; a subscriber that receives all messages must be able to detect what it has missed.
    """

    def __init__(self, violations: Violations, truth: Truth) -> None:
        self._violations = violations
        self._truth = truth
        #: The last position by sender and writer.
        self._last: dict[tuple[str, Key], Token] = {}
        #: The highest announced position by writer.
        self._announced: dict[Key, Token] = {}
        self._partial_batches: set[tuple[str, Key]] = set()
        self.messages = 0

    def published(self, connection: str, channel: str, message: bytes) -> None:
        """Redis has received a message."""
        self.messages += 1
        verb, _, rest = message.decode().partition(" ")
        if verb == "RDATA":
            stream, writer, at, _ = rest.split(" ", 3)
            self._rdata(connection, (stream, writer), at)
        elif verb == "POSITION":
            stream, writer, prev, new = rest.split(" ")
            self._position(connection, (stream, writer), int(prev), int(new))

    def _rdata(self, connection: str, key: Key, at: str) -> None:
        if at == "batch":
            self._partial_batches.add((connection, key))
            return
        new = int(at)
        self._partial_batches.discard((connection, key))
        last = self._last.get((_sender(connection), key))
        if last is not None and new <= last:
            self._broken("R2", connection, key, "went back to {new} from {last}", new, last)
        self._gap(connection, key, new - 1)
        self._advance(connection, key, new)

    def _position(self, connection: str, key: Key, prev: Token, new: Token) -> None:
        last = self._last.get((_sender(connection), key))
        if (connection, key) in self._partial_batches:
            self._broken("R2", connection, key, "has POSITION {new} within a batch", new)
        if prev > new or (last is not None and new < last):
            self._broken("R2", connection, key, "went back to {new} from {last}", new, last)
        if prev <= self._announced.get(key, 0):
            self._gap(connection, key, new)
        self._advance(connection, key, new)

    def _gap(self, connection: str, key: Key, upto: Token) -> None:
        """Report facts that were not announced and whose absence cannot be detected."""
        for fact in self._truth.between(*key, self._announced.get(key, 0), upto):
            self._broken("R3", connection, key, "left {new} out after {last}", fact.token,
                         self._announced.get(key, 0))  # fmt: skip

    def _advance(self, connection: str, key: Key, new: Token) -> None:
        published = self._truth.published.get(key, 0)
        if new > published:
            self._broken("R2", connection, key, "said {new}, above {last}", new, published)
        sender = _sender(connection), key
        self._last[sender] = max(new, self._last.get(sender, 0))
        self._announced[key] = max(new, self._announced.get(key, 0))

    def _broken(
        self,
        rule: str,
        connection: str,
        key: Key,
        words: str,
        new: Token,
        last: Token | None = None,
    ) -> None:
        self._violations.add(
            rule, "{connection} on the bus: {stream} of {writer} " + words,
            connection=connection, stream=key[0], writer=key[1], new=new, last=last,
        )  # fmt: skip


def _sender(connection: str) -> str:
    return connection.rpartition(".")[0]
