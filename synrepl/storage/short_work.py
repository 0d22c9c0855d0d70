"""Transactions of two round trips: an opening script, and what follows from the row that it returns.

Nothing but the server's answer is waited for in between, so they need no thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, NoReturn, Protocol, Self, TypeVar

from synrepl.storage.database import DeferredScript, OpeningScript, Record, Transaction, Values
from synrepl.storage.outbox import Outbox

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class NotShort(Exception):
    """The work needs an answer of the database after all: run it as any other transaction."""


class Opening(NamedTuple):
    """The first round trip, without BEGIN."""

    script: OpeningScript
    params: Sequence[object]


class ShortWork(ABC, Generic[T_co]):
    """Work of a caller that may be short: it is either called, or its two methods are."""

    @abstractmethod
    def __call__(self, txn: Transaction, outbox: Outbox) -> T_co:
        """Do it in any number of round trips, in a thread."""

    @abstractmethod
    def opening(self, outbox: Outbox) -> Opening | None:
        """Prepare the first round trip, with :meth:`.Outbox.reserve_early`; None if the work is not short."""

    @abstractmethod
    def finish(self, txn: Transaction, outbox: Outbox, row: Record | None) -> T_co:
        """Do the rest, in the thread of the reactor. It must be quick.

        :param txn: takes deferred scripts only
        :param row: the first row of the opening; None without one, and then it must raise
        :raises NotShort: also raised by ``txn``; everything is rolled back
        """


class ShortResult(NamedTuple, Generic[T]):
    """The result of a short transaction that was committed."""

    result: T


class ShortTransactions(Protocol):
    """Runs short transactions, one at a time."""

    @property
    def is_idle(self) -> bool:
        """Whether it can run one now. If it is not connected, it begins to connect."""

    async def run(
        self, name: str, opening: Opening, finish: Callable[[Transaction, Record | None], T]
    ) -> ShortResult[T] | None:
        """Run a transaction once, and roll back if ``finish`` raises.

        :returns: None if the connection was lost, or for another reason that is not its own; then nothing was changed
        :raises CommitUnknown: the connection was lost during COMMIT, and the outcome cannot be determined
        :raises QueryFailed: and the other errors of a :class:`~.database.Transaction`; nothing was changed
        """


class DeferredOnly:
    """Implements :class:`~.database.Transaction` for :meth:`ShortWork.finish`.

    :ivar parts: the statements to send, with ``params``
    """

    rowcount = -1

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.params: list[object] = []

    def execute(self, sql: str, params: Values = ()) -> Self:
        """Take a deferred script."""
        if not isinstance(sql, DeferredScript) or not params or not isinstance(params, Sequence):
            raise NotShort
        self.parts += sql.parts
        self.params += params
        return self

    def insert_many(
        self, sql: str, rows: Iterable[Values], template: str | None = None
    ) -> list[Record]:
        """Refuse."""
        raise NotShort

    def fetchone(self) -> NoReturn:
        """Refuse."""
        raise NotShort

    def fetchone_or_none(self) -> NoReturn:
        """Refuse."""
        raise NotShort

    def fetchall(self) -> NoReturn:
        """Refuse."""
        raise NotShort

    def __iter__(self) -> Iterator[Record]:
        raise NotShort

    def copy_in(self, sql: str, chunks: Iterable[str] | Iterable[bytes]) -> int:
        """Refuse."""
        raise NotShort

    def copy_out(self, sql: str, write: Callable[[bytes], object]) -> int:
        """Refuse."""
        raise NotShort
