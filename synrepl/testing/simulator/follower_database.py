"""The database as followers use it: their positions on record, and transactions of handlers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

from synrepl.core.tokens import Token
from synrepl.storage.database import CommitUnknown, Isolation, Record, Transaction, Values

T = TypeVar("T")
Key = tuple[str, str]


class FollowerTransaction:
    """Understands the statements of :mod:`synrepl.storage.followers`, and no others.

    :ivar effects: what a transactional handler leaves behind; done when it commits
    """

    def __init__(self, positions: Mapping[str, dict[Key, Token]]) -> None:
        self.positions = dict(positions)
        self._changed: dict[str, dict[Key, Token]] = {}
        self.effects: list[Callable[[], object]] = []
        self.rowcount = -1
        self._found: list[Record] = []

    def execute(self, sql: str, params: Values = ()) -> Self:
        """Run one of the known statements."""
        values: Any = tuple(params)
        words = sql.split()
        if words[0] == "SELECT":
            at = self.positions.get(values[0], {})
            self._found = [(*key, position) for key, position in sorted(at.items())]
        elif words[0] == "DELETE":
            self._own(values[0]).pop((values[1], values[2]), None)
        elif "FROM" in words:
            self._advance(*values[:5])
        else:
            self._record(*values)
        return self

    def fetchall(self) -> list[Record]:
        """What the last SELECT found."""
        return self._found

    def _own(self, follower: str) -> dict[Key, Token]:
        """A follower's positions, to be changed here: others see them when this commits."""
        at = self._changed.get(follower)
        if at is None:
            at = self._changed[follower] = dict(self.positions.get(follower, {}))
            self.positions[follower] = at
        return at

    def _advance(self, follower: str, stream: str, writer: str, after: Token, upto: Token) -> None:
        at = self._own(follower)
        self.rowcount = int(at.get((stream, writer), after) == after)
        if self.rowcount:
            at[stream, writer] = upto

    def _record(self, follower: str, stream: str, writer: str, position: Token) -> None:
        at = self._own(follower)
        at[stream, writer] = max(position, at.get((stream, writer), 0))


class FollowerDatabase:
    """Runs transactions of followers one after the other (implements ``storage.database.Database``).

    :param trip: awaited before the transaction and before its answer: takes time, and
        may raise ``DatabaseAway``
    :param breaks: asked what goes wrong: "again" (the work runs twice, as after a
        deadlock), "lost" or "unknown" (the commit's answer is lost, without or with
        effect), anything else for nothing
    """

    def __init__(
        self, trip: Callable[[str], Any], breaks: Callable[[str], str], positions: Positions
    ) -> None:
        self._trip = trip
        self._breaks = breaks
        self._kept = positions

    async def run(
        self,
        name: str,
        work: Callable[[Transaction], T],
        *,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> T:
        """Run ``work`` in one transaction; see :class:`synrepl.storage.database.Database`."""
        await self._trip(name)
        broken = "" if read_only else self._breaks(name)
        if broken == "again":
            self._attempt(work)
        txn, result = self._attempt(work)
        if broken != "lost":
            self._kept.positions = txn.positions
            for effect in txn.effects:
                effect()
        if broken in ("lost", "unknown"):
            raise CommitUnknown(where="the simulation", name=name, xid=0, reason=broken)
        await self._trip(name)
        return result

    def _attempt(self, work: Callable[[Transaction], T]) -> tuple[FollowerTransaction, T]:
        txn = FollowerTransaction(self._kept.positions)
        return txn, work(txn)  # type: ignore[arg-type]


class Positions:
    """What is on record for all followers."""

    def __init__(self) -> None:
        self.positions: dict[str, dict[Key, Token]] = {}
