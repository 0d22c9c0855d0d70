"""Safe bounds of the streams of a real Synapse, computed from repeated observations (R5)."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple

from synrepl.core.tokens import Token
from synrepl.positions.settlement import SettlementTracker
from synrepl.positions.vector import PositionVector
from synrepl.storage.database import Transaction

#: Maximum time between allocating a token and beginning its transaction in Synapse, in seconds.
SETTLE_S = 5.0

# The activity view hides other users' transactions from a plain user. Every transaction holds a
# lock on its own virtual ID, which everybody can see.
_OPEN = """
    SELECT l.pid, l.virtualtransaction FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE l.locktype = 'virtualxid' AND l.mode = 'ExclusiveLock'
      AND a.datname = current_database() AND l.pid <> pg_backend_pid()
      AND a.backend_type IS DISTINCT FROM 'autovacuum worker'
"""


class OpenForeignTransaction(NamedTuple):
    """A transaction that was open at an observation."""

    pid: int
    virtual_id: str

    def __str__(self) -> str:
        return f"the transaction of PID {self.pid}"


def open_transactions(txn: Transaction) -> list[OpenForeignTransaction]:
    """The transactions that are open in this database, apart from this one.

    They are read outside the transaction's snapshot, so progress that was read before is older.
    """
    return [OpenForeignTransaction(*row) for row in txn.execute(_OPEN).fetchall()]


class SafeBound(NamedTuple):
    """How far one stream may be read, as observed once.

    :ivar bound: no fact at or below it can still be committed (R5)
    :ivar last: the last token that a writer may have allocated by the observation; it decreases if the
        database went back
    :ivar trimmed: facts at or below it have been trimmed
    :ivar waits_for: descriptions of what holds the bound back
    """

    bound: PositionVector
    last: Token
    trimmed: Token
    waits_for: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """True if no write is in flight: the bound is the end of the stream."""
        return self.bound.linear >= self.last


class ForeignBounds:
    """The safe bound of one stream in a real Synapse's database. It never decreases.

    The positions that Synapse records are safe, writer by writer, and the least of them is safe for
    writers without a record, as it is for Synapse itself. For streams without records there is no
    proof from outside, because a token may be allocated before its transaction begins. There the
    bound is the last token observed once ``settle_s`` seconds have passed and every transaction
    that was open *at the end of that time* is over.

    :param settle_s: maximum time between allocating a token and beginning its transaction, in seconds
    """

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._settling = SettlementTracker()
        self._waiting: deque[tuple[float, Token]] = deque()  # time and token, both increasing
        self._begun: Token = 0
        self._bound = PositionVector()

    def update(
        self,
        recorded: Mapping[str, Token],
        last: Token,
        open_transactions: Iterable[Hashable],
        now: float,
    ) -> SafeBound:
        """Update the bound from one observation.

        :param recorded: by writer, the recorded position
        :param last: the last token that the stream is known to have allocated
        :param open_transactions: identities of the open transactions in this database, read after
            ``last``; their text describes them
        :param now: the time of the observation on a monotonic clock, in seconds
        """
        waiting = self._waiting
        while (
            waiting and waiting[-1][1] > last
        ):  # the sequence was set back, and may allocate them again
            waiting.pop()
        if last > (waiting[-1][1] if waiting else self._begun):
            waiting.append((now, last))
        self._begun = min(self._begun, last)
        while waiting and now - waiting[0][0] >= self._settle_s:
            # The transactions of tokens up to here have begun by now, or are over.
            self._begun = waiting.popleft()[1]
        settled = self._settling.observe(self._begun, list(open_transactions))
        at = dict(self._bound.writers)
        for writer, token in recorded.items():
            at[writer] = max(token, self._bound[writer])
        linear = max(self._bound.linear, settled, min(recorded.values(), default=0))
        self._bound = PositionVector(at, linear)
        waits_for = tuple(sorted(map(str, self._settling.holders)))
        if waiting and not waits_for:
            # No transaction is open: wait for those that may not have begun yet.
            waits_for = (f"transactions that may begin within {self._settle_s:g} s",)
        return SafeBound(self._bound, max(last, min(recorded.values(), default=0)), 0, waits_for)
