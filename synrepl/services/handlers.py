"""Base classes of handlers, which users write and name in the configuration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, cast

from zope.interface import implementer

from synrepl.caches.registry import Caches
from synrepl.core.tokens import Range, Token
from synrepl.services.coherence.invalidations import Changes
from synrepl.services.handler_interfaces import IHandler, ITransactionalHandler
from synrepl.services.sending.commands import Commands
from synrepl.storage.database import Database, Transaction
from synrepl.streams.definition import Fact
from synrepl.streams.row import Row
from synrepl.wire.commands import Command


class WaitsFor(Protocol):
    """See :meth:`synrepl.services.waiting.wait_for.WaitFor.wait_for`."""

    def __call__(
        self, stream: str, writer: str | None, token: Token, timeout_s: float = 10.0
    ) -> Coroutine[Any, Any, Token]: ...


class SyncingUsers(Protocol):
    """The users that are syncing; see :class:`synrepl.services.serving.user_sync.UserSyncs`.

    :meth:`Handler.on_command` receives the changes.
    """

    @property
    def count(self) -> int:
        """Number of users (with devices: of users and devices) of all instances."""

    def is_syncing(self, user: str) -> bool:
        """Whether a user syncs anywhere."""

    def users(self) -> set[str]:
        """All users that sync anywhere, as a copy; with very many users this is slow."""

    def by_instance(self) -> dict[str, set[str]]:
        """The syncing users by instance, as a copy."""


#: See :attr:`Handler.view`.
View = Literal["per_writer", "linear"]


@dataclass(frozen=True, slots=True)
class Access:
    """The parts of its process that a handler may use.

    :ivar caches: the coherent caches of this process
    :ivar wait_for: ``await wait_for(stream, writer, token, timeout_s=10.0)`` waits until this
        process has facts that were written elsewhere
    :ivar commands: sends USER_SYNC, FEDERATION_ACK and so on
    :ivar syncing: the users that sync through any process; None in a worker that follows over
        TCP, which does not receive them
    :ivar database: None in a process without a database
    :ivar changes: runs transactions that invalidate cache entries in every process; None in a
        process that does not write the ``caches`` stream
    """

    caches: Caches
    wait_for: WaitsFor
    commands: Commands
    syncing: SyncingUsers | None = None
    database: Database | None = None
    changes: Changes | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive facts of one writer of one stream, complete and in order.

    :ivar stream: the name of the stream
    :ivar writer: the name of the writer; "" in the linear view, which covers all writers
    :ivar after: the position before the batch
    :ivar upto: the position after the batch
    :ivar facts: the facts above ``after``, up to ``upto``
    :ivar ordered: False for rows that a real Synapse sends unordered and repeatedly: their
        tokens carry no meaning, and each row may come again
    :ivar replayed: True for a replayed dead letter: the facts above it may have been handled
        already
    """

    stream: str
    writer: str
    after: Token
    upto: Token
    facts: Sequence[Fact]
    ordered: bool = True
    replayed: bool = False

    def __str__(self) -> str:
        return f"{self.stream} ({self.after}, {self.upto}] of {self.writer or 'all writers'}"

    @property
    def rows(self) -> list[Row]:
        """All rows, in order."""
        return [row for fact in self.facts for row in fact.rows]


@implementer(IHandler)
class Handler:
    """Base class of handlers; override what you need.

    >>> from synrepl import Batch, Handler
    >>> class Mailer(Handler):
    ...     streams = frozenset({"orders"})
    ...
    ...     async def on_rows(self, batch: Batch) -> None:
    ...         for row in batch.rows:
    ...             print("thank you for", row.order_id)

    Batches of one writer of one stream come one at a time and in order: the next call is made
    when the coroutine has returned. Calls for different streams may overlap. Each handler has its
    own positions. After an exception the position stays where it was, and the batch is delivered
    again after a delay, so a handler sees every fact at least once. Other handlers continue
    meanwhile. See :class:`TransactionalHandler` for exactly-once processing.
    """

    #: Names of the streams to receive; None for all.
    streams: ClassVar[Collection[str] | None] = None

    #: Order of the facts of streams with several writers. ``"per_writer"``: in order per
    #: writer, each as soon as its writer's position has passed it. ``"linear"``: in token order
    #: over all writers, once the linear position has passed them; :attr:`Batch.writer` is ""
    #: then. None: the view of the connection to the master. In-memory streams always have the
    #: view of the connection.
    view: ClassVar[View | None] = None

    async def on_start(self, access: Access) -> None:
        """Prepare to run; called before any other method.

        If the database becomes unavailable meanwhile, it is called again until it returns.
        """

    async def on_rows(self, batch: Batch) -> None:
        """Handle new facts of one of :attr:`streams`."""

    async def on_command(self, source: str, command: Command) -> None:
        """Handle a command of another process that is not a row, such as USER_SYNC.

        Commands come one at a time and in order: the next call is made when the coroutine has
        returned. An exception is logged, and the command is not repeated. Up to 10,000 commands
        are queued. From 5,000 on, a master does not read clients that send more; beyond 10,000,
        commands are dropped.

        When a connection is lost, its users stop syncing: there is one CLEAR_USER_SYNC for each of
        its instances, or a USER_SYNC per user if another connection has the instance.

        :param source: the name of the connection that the command came from
        """

    async def on_reset(
        self, stream: str, writer: str, position: Token, lost: Range | None = None
    ) -> None:
        """Discard everything derived from a writer's facts, because they are void.

        Without ``lost``, the writer started again at a lower position, or facts up to ``position``
        were trimmed before they were delivered to this handler.

        With ``lost``, the database failed over to a server that lacks facts. Facts in this range
        may have been delivered to this handler and no longer exist; those that still exist are
        delivered again. Not called for transactional handlers, whose effects and positions were
        rolled back together with the facts. An override without this parameter is called without
        it.

        :param writer: "" in the linear view
        :param position: facts at or below it are void; with ``lost``, facts above it
        """


@implementer(ITransactionalHandler)
class TransactionalHandler(Handler, ABC):
    """Base class of handlers that write to the same database and apply each fact exactly once.

    >>> from synrepl import Batch, Transaction, TransactionalHandler
    >>> class Totals(TransactionalHandler):
    ...     streams = frozenset({"orders"})
    ...
    ...     def apply(self, txn: Transaction, batch: Batch) -> None:
    ...         totals = [(row.order_id, row.amount) for row in batch.rows]
    ...         txn.insert_many("INSERT INTO totals VALUES %s", totals)

    Only rows that a real Synapse sends unordered (see :attr:`Batch.ordered`) may be applied again,
    so applying them must be idempotent.

    :meth:`apply` runs in one transaction with the handler's position, so both commit or neither
    does. It may run more than once, and only the last run counts, so it must change nothing
    outside the transaction.
    """

    @abstractmethod
    def apply(self, txn: Transaction, batch: Batch) -> None:
        """Apply the facts, using ``txn`` only; called in a thread of the database pool."""


def as_transactional(handler: Handler) -> TransactionalHandler | None:
    """The handler if it works in the transaction that moves its position, or None."""
    if ITransactionalHandler.providedBy(handler):
        return cast(TransactionalHandler, handler)
    return None
