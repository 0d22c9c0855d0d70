"""A caller's own changes, and facts of several streams, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from synrepl.core.tokens import Token
from synrepl.services.writing.lease_term import Facts
from synrepl.services.writing.outcome import FactRows, WriteOutcome
from synrepl.storage.database import CommitUnknown, Transaction
from synrepl.storage.outbox import Outbox
from synrepl.storage.store import TransactionResult, WriterLease
from synrepl.streams.definition import Stream

T = TypeVar("T")


class CallerTransaction(Generic[T]):
    """Runs a caller's work in a transaction, and appends what it puts into the outbox.

    The result is what the work returned in the run that was committed, and its facts.
    Implements :class:`~.lease_term.Write`.

    :param name: what the transaction does, for logs and errors
    """

    def __init__(
        self, name: str, streams: Sequence[Stream], work: Callable[[Transaction, Outbox], T]
    ) -> None:
        self.streams = streams
        self._name = name
        self._work = work
        # Result of the last run that finished, the only one that can have been committed.
        # Set by a database thread.
        self._ran: tuple[T, Outbox] | None = None

    @property
    def certain(self) -> FactRows:
        """The contents of the outbox; empty until the work has returned."""
        ran = self._ran
        return {} if ran is None else ran[1].facts

    possible = certain

    async def commit(
        self, lease: WriterLease, begin: Callable[[], Mapping[str, Token]]
    ) -> TransactionResult[TransactionResult[T]]:
        """Run the work in a transaction; tokens are reserved only after it has returned."""
        done = await lease.transact(self._name, self.streams, self._run, begin)
        return TransactionResult(done, done.facts)

    async def resolve(
        self, outcome: WriteOutcome, found: Facts, error: CommitUnknown
    ) -> TransactionResult[T]:
        """The result and all facts in doubt, if the commit is proved."""
        if outcome is WriteOutcome.COMMITTED and self._ran is not None:
            return TransactionResult(
                self._ran[0], {name: facts for name, facts in found.items() if facts}
            )
        raise error

    def _run(self, txn: Transaction, outbox: Outbox) -> T:
        self._ran = None
        result = self._work(txn, outbox)
        outbox.close()
        self._ran = result, outbox
        return result
