"""What users write: handlers of rows and commands, named in the configuration."""

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
    """Who is syncing; see :class:`synrepl.services.serving.user_sync.UserSyncs`.

    :meth:`Handler.on_command` tells of changes.
    """

    @property
    def count(self) -> int:
        """Number of users (with devices: of users and devices) of all instances."""

    def is_syncing(self, user: str) -> bool:
        """Whether a user syncs anywhere."""

    def users(self) -> set[str]:
        """All users that sync anywhere. A copy: with very many users it takes a while."""

    def by_instance(self) -> dict[str, set[str]]:
        """The users by instance. A copy."""


#: See :attr:`Handler.view`.
View = Literal["per_writer", "linear"]


@dataclass(frozen=True, slots=True)
class Access:
    """What of its process a handler may use.

    :ivar caches: the caches that are kept coherent here
    :ivar wait_for: ``await wait_for(stream, writer, token, timeout_s=10.0)`` waits until this
        process has what was written elsewhere
    :ivar commands: sends USER_SYNC, FEDERATION_ACK and so on
    :ivar syncing: who syncs through any process; None in a worker that follows over TCP,
        which is not told
    :ivar database: None in a process without one
    :ivar changes: runs transactions that make caches stale everywhere; None in a
        process that writes no ``caches`` stream
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
    :ivar writer: the name of the writer; "" in the linear view, which is of all writers
    :ivar after: the position before
    :ivar upto: the position once this is handled
    :ivar facts: the facts above ``after``, up to ``upto``
    :ivar ordered: False for rows that a real Synapse sends without order and
        repeats: their tokens say nothing, and each may come again
    :ivar replayed: True for a fact that had been set aside as a dead letter: those
        above it may have been dealt with already
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
    """Base of handlers; override what you need.

    >>> from synrepl import Batch, Handler
    >>> class Mailer(Handler):
    ...     streams = frozenset({"orders"})
    ...
    ...     async def on_rows(self, batch: Batch) -> None:
    ...         for row in batch.rows:
    ...             print("thank you for", row.order_id)

    Batches of one writer of one stream come one at a time and in order: the next
    call comes when the coroutine has ended. Those of different streams may
    overlap. Each handler has positions of its own. After an exception the position
    stays where it was, and the batch comes again after a pause: a handler sees every
    fact at least once. Meanwhile the other handlers go on. See
    :class:`TransactionalHandler` for exactly once.
    """

    #: Names of the streams to receive; None for all.
    streams: ClassVar[Collection[str] | None] = None

    #: How facts of streams with several writers come. ``"per_writer"``: in order per
    #: writer, each as soon as its writer's position has passed it. ``"linear"``: in the
    #: order of their tokens over all writers, once the linear position has passed them;
    #: :attr:`Batch.writer` is "" then. None: as the connection to the master has it.
    #: Streams that are kept in memory always come as the connection has them.
    view: ClassVar[View | None] = None

    async def on_start(self, access: Access) -> None:
        """The process is about to start; called before anything else.

        Called again when the database went away meanwhile, until it returns.
        """

    async def on_rows(self, batch: Batch) -> None:
        """New facts of one of :attr:`streams`."""

    async def on_command(self, source: str, command: Command) -> None:
        """Another process said something that is not a row, such as USER_SYNC.

        Commands come one at a time and in order: the next call follows when the coroutine
        has ended. An exception is logged, and the command is not repeated. Up to 10,000
        commands are queued. From 5,000 on, a master does not read clients that send more;
        beyond 10,000, commands are dropped.

        When a connection is lost, its users stop syncing: there is one CLEAR_USER_SYNC for
        each of its instances, or a USER_SYNC per user if another connection has the instance.

        :param source: the name of the connection it came from
        """

    async def on_reset(
        self, stream: str, writer: str, position: Token, lost: Range | None = None
    ) -> None:
        """Facts of a writer are void: forget what came of them.

        Without ``lost`` the writer started again at a lower position, or facts up to
        ``position`` were trimmed before they were given to this handler.

        With ``lost`` the database failed over to a server that lacks facts. Facts in this range
        may have been given to this handler, and not exist any more; those that still do are
        given again. A transactional handler is not told: its effects and its position were
        rolled back together with the facts. An override without this parameter is called
        without it.

        :param writer: "" in the linear view
        :param position: what lies at or below it is void; with ``lost``, what lies above it
        """


@implementer(ITransactionalHandler)
class TransactionalHandler(Handler, ABC):
    """A handler whose effects are in the same database: each fact is applied exactly once.

    >>> from synrepl import Batch, Transaction, TransactionalHandler
    >>> class Totals(TransactionalHandler):
    ...     streams = frozenset({"orders"})
    ...
    ...     def apply(self, txn: Transaction, batch: Batch) -> None:
    ...         totals = [(row.order_id, row.amount) for row in batch.rows]
    ...         txn.insert_many("INSERT INTO totals VALUES %s", totals)

    Only what a real Synapse sends without order (:attr:`Batch.ordered`) may be
    applied again: make that harmless.

    :meth:`apply` runs in one transaction with the handler's position, so both
    commit or neither does. It may run more than once, only the last one counts:
    change nothing outside the transaction.
    """

    @abstractmethod
    def apply(self, txn: Transaction, batch: Batch) -> None:
        """Apply the facts, using ``txn`` only; called in a thread of the database pool."""


def as_transactional(handler: Handler) -> TransactionalHandler | None:
    """The handler if it works in the transaction that moves its position, or None."""
    if ITransactionalHandler.providedBy(handler):
        return cast(TransactionalHandler, handler)
    return None
