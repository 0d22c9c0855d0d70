"""Checks every line that a master sends on a connection (R2, and no undetectable gaps)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.truth import ALL, Truth, Violations
from synrepl.core.tokens import Token
from synrepl.storage.incarnations import MARGIN
from synrepl.streams.definition import Fact

#: Whether a fact is too long for a line of this connection.
TooLong = Callable[[str, Fact], bool]


class WireChecker:
    """Reads both directions of a connection as bytes, without the product's codec.

    :param name: the name of the connection, for messages
    """

    def __init__(self, violations: Violations, truth: Truth, name: str, too_long: TooLong) -> None:
        self._violations = violations
        self._truth = truth
        self._name = name
        self._too_long = too_long
        self._buffers = {"client": b"", "server": b""}
        self._legacy = False
        self._last: dict[tuple[str, str], Token] = {}
        self._partial_batches: set[tuple[str, str]] = set()
        self._asked: dict[str, list[Token | None]] = {}
        self._catching_up: set[str] = set()
        self.lines = 0

    def client_sent(self, data: bytes) -> None:
        """The follower has sent data."""
        for line in self._lines("client", data):
            words = line.split()
            if words[0] == b"REPLICATE" and len(words) == 3:
                self._legacy = True
                token = int(words[2]) if words[2].isdigit() else None
                self._asked.setdefault(words[1].decode(), []).append(token)

    def server_sent(self, data: bytes) -> None:
        """The master has sent data."""
        for line in self._lines("server", data):
            self.lines += 1
            if line.startswith(b"RDATA "):
                self._rdata(line)
            elif line.startswith(b"POSITION "):
                self._position(line)

    def _lines(self, side: str, data: bytes) -> Sequence[bytes]:
        *lines, self._buffers[side] = (self._buffers[side] + data).split(b"\n")
        return lines

    def _rdata(self, line: bytes) -> None:
        if self._legacy:
            _, stream, token, _ = line.split(b" ", 3)
            key = stream.decode(), ALL
        else:
            _, stream, writer, token, _ = line.split(b" ", 4)
            key = stream.decode(), writer.decode()
        if token == b"batch":
            self._partial_batches.add(key)
            return
        new = int(token)
        last = self._last.get(key)
        in_run = key[0] in self._catching_up
        if not self._legacy and last is None:
            self._broken("R2", "{stream} {token} by {writer} before any POSITION", key, new)
        elif last is None or new < last or (new == last and not in_run):
            last = self._answered(key, last, new)
        if last is not None:
            self._gap(key, last, new - 1)
        self._partial_batches.discard(key)
        self._advance(key, new)

    def _position(self, line: bytes) -> None:
        words = line.decode().split()
        if self._legacy:
            _, stream, new_text = words
            key, prev = (stream, ALL), None
        else:
            _, stream, writer, prev_text, new_text = words
            key, prev = (stream, writer), int(prev_text)
        new, last = int(new_text), self._last.get(key)
        if key in self._partial_batches:
            self._broken("R2", "{stream} of {writer}: POSITION {token} within a batch", key, new)
        if (last is None and self._legacy) or (last is not None and new < last):
            last = self._answered(key, last, new)
        if last is not None:
            if prev == last or self._legacy:
                self._gap(key, last, new)
            elif (key[0], new) in self._truth.lost:
                pass  # it may have been too long
            elif prev == new and new >= MARGIN:
                pass  # advanced by a failover
            elif not any(self._too_long(key[0], fact) for fact in self._facts(key, last, new)):
                self._broken(
                    "R2", "{stream} of {writer}: POSITION {token} names another prev", key, new
                )
        self._catching_up.discard(key[0])
        self._advance(key, new)

    def _answered(self, key: tuple[str, str], last: Token | None, new: Token) -> Token | None:
        """The position before a line that answers a REPLICATE of a legacy peer, which may go back."""
        asked = self._asked.setdefault(key[0], list(self._asked.get("ALL", [])))
        while asked:
            start = asked.pop(0)
            self._catching_up.add(key[0])
            if last is None or start is None:
                return start
            if start <= new:
                self._last[key] = min(start, last)
                return self._last[key] if new < last else last
        if last is not None:
            self._broken(
                "R2", "{stream} of {writer} went back to {token} from {last}", key, new, last
            )
        return last

    def _gap(self, key: tuple[str, str], after: Token, upto: Token) -> None:
        """Check that only facts too long for a line, or trimmed, are left out."""
        for fact in self._facts(key, after, upto):
            lost = self._too_long(key[0], fact) or not self._truth.is_there(key[0], fact)
            if not (self._legacy and lost):
                self._broken(
                    "R3", "{stream} of {writer}: {token} was left out after {last}",
                    key, fact.token, after,
                )  # fmt: skip

    def _facts(self, key: tuple[str, str], after: Token, upto: Token) -> Sequence[Fact]:
        return self._truth.between(*key, after, upto)

    def _advance(self, key: tuple[str, str], new: Token) -> None:
        at = self._truth.published.get(key, 0)
        if new > at:
            self._broken("R2", "{stream} of {writer}: {token} is above {last}", key, new, at)
        self._last[key] = max(new, self._last.get(key, 0))

    def _broken(
        self, rule: str, words: str, key: tuple[str, str], token: Token, last: Token | None = None
    ) -> None:
        self._violations.add(
            rule,
            "{name}: " + words,
            name=self._name, stream=key[0], writer=key[1] or "the linear view",
            token=token, last=last,
        )  # fmt: skip
