"""The :class:`synrepl.storage.store.FactStore` in PostgreSQL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Range, Token
from synrepl.storage import incarnations, writers
from synrepl.storage.database import (
    Database,
    DatabaseSession,
    LockNotAvailable,
    Statements,
    Transaction,
)
from synrepl.storage.followers import named_followers
from synrepl.storage.incarnations import Incarnations
from synrepl.storage.postgres import retention
from synrepl.storage.postgres.facts import FactTable
from synrepl.storage.postgres.lease import PostgresLease
from synrepl.storage.short_work import ShortTransactions
from synrepl.storage.store import (
    AgedPositions,
    NamedFollower,
    Observation,
    Page,
    TrimResult,
    WriterRemoved,
    WriterTaken,
)
from synrepl.storage.tables import ensure_tables, protect, unprotected
from synrepl.storage.writers import Claim
from synrepl.streams.definition import Stream

T = TypeVar("T")

#: Seconds to wait for a predecessor's dying connection to release a writer name.
TAKEOVER_S = 5.0
_TAKEOVER_STEP_S = 0.1


class PostgresStore:
    """Streams of facts in one PostgreSQL database.

    :param open_session: opens a separate connection for a writer's locks
    :param holder: description of this process, for others that are refused a name
    :param notify: whether to wake other processes' announcers with every commit; a process
        that announces its own facts to all followers can save the cost
    :param statements: runs appends of single rows with less delay than the connection pool
    :param incarnations: incarnations of the server that the process has seen
    :param short: runs short transactions with less delay than the connection pool
    """

    is_late = False

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        open_session: Callable[[], Awaitable[DatabaseSession]],
        holder: str,
        notify: bool = True,
        statements: Statements | None = None,
        incarnations: Incarnations | None = None,
        short: ShortTransactions | None = None,
    ) -> None:
        self._statements = statements
        self._short = short
        self._scheduler = scheduler
        self._database = database
        self._open_session = open_session
        self._holder = holder
        self._notify = notify
        self._tables: dict[str, FactTable] = {}
        self._incarnations = Incarnations() if incarnations is None else incarnations

    async def prepare(self, streams: Sequence[Stream]) -> Sequence[str]:
        """Create or widen the streams' tables, and protect their rows from changes.

        :returns: streams that could not be protected: an older version made their tables,
            and they are locked by writing transactions
        :raises DeclarationChanged: a declaration contradicts its table
        """
        await self._database.run("ensure_tables", lambda txn: ensure_tables(txn, streams))
        names = await self._database.run("unprotected", lambda txn: unprotected(txn, streams))
        return [name for name in names if not await self._protect(name)]

    async def _protect(self, name: str) -> bool:
        with suppress(LockNotAvailable):
            await self._database.run("protect", lambda txn: protect(txn, name))
            return True
        return False

    def table(self, stream: Stream) -> FactTable:
        """The statements of a stream's table."""
        found = self._tables.get(stream.name)
        if found is None:
            found = self._tables[stream.name] = FactTable(stream)
        return found

    async def open_writer(self, writer: str, streams: Sequence[Stream]) -> PostgresLease:
        """Become ``writer``: take its session locks, then raise its epochs."""
        session = await self._open_session()
        tables = {stream.name: self.table(stream) for stream in streams}
        claims: dict[str, Claim] = {}
        lease = PostgresLease(
            self._database, session, writer, claims, tables, self._statements, self._short
        )
        try:
            for stream in streams:
                claims[stream.name] = await self._claim(session, stream, writer)
        except BaseException:
            with suppress(SynreplError):
                await lease.close()
            raise
        return lease

    async def _claim(self, session: DatabaseSession, stream: Stream, writer: str) -> Claim:
        table = self.table(stream)

        def attempt(txn: Transaction) -> Claim | str:
            self._incarnations.check(txn)
            number = writers.register(txn, stream.name, writer)
            if not writers.try_session_lock(txn, number):
                return writers.session_holder(txn, number) or "a process that is just leaving"
            epoch = writers.raise_epoch(txn, number, self._holder)
            if epoch is None:
                raise WriterRemoved(writer=writer, stream=stream.name)
            claim = Claim(number, epoch, self._notify)
            if not writers.is_draining(txn, number):  # a draining writer would get no token for it
                table.repair(txn, claim)
            return claim

        give_up = self._scheduler.seconds() + TAKEOVER_S
        while True:
            answer = await session.run(attempt)
            if isinstance(answer, Claim):
                return answer
            if self._scheduler.seconds() >= give_up:
                raise WriterTaken(writer=writer, stream=stream.name, holder=answer)
            await self._scheduler.sleep(_TAKEOVER_STEP_S)

    async def observe(self, streams: Sequence[Stream]) -> Mapping[str, Observation]:
        """Observe streams."""
        return await self._database.run(
            "observe", lambda txn: self._observe(txn, streams), read_only=True
        )

    async def given_out(self, stream: Stream) -> Token:
        """The largest token that can have been given out."""
        return await self._run(
            "given_out", lambda txn: writers.given_out(txn, stream), read_only=True
        )

    def _observe(self, txn: Transaction, streams: Sequence[Stream]) -> Mapping[str, Observation]:
        self._incarnations.check(txn)
        return writers.observe(txn, streams)

    async def confirm(self, announced: Mapping[str, Mapping[str, Token]]) -> int:
        """Confirm a server that was promoted or restored."""
        return await self._database.run(
            "confirm", lambda txn: incarnations.confirm(txn, self._holder, announced)
        )

    async def fence(self, stream: Stream, writer: str) -> bool:
        """Raise a dead writer's epoch once no transaction of it can still commit."""
        return await self._run("fence", lambda txn: writers.fence(txn, stream.name, writer))

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """A page of about ``limit`` rows of the facts in ``span``."""
        table = self.table(stream)
        return await self._run(
            "page", lambda txn: table.page(txn, span, writer, limit), read_only=True
        )

    async def reached(self, stream: Stream, span: Range) -> Mapping[str, Token]:
        """The largest token in ``span`` of each writer that has one there."""
        table = self.table(stream)
        return await self._run("reached", lambda txn: table.reached(txn, span), read_only=True)

    async def record_positions(
        self, stream: Stream, linear: Token, at: Mapping[str, Token]
    ) -> None:
        """Record positions."""

        def work(txn: Transaction) -> None:
            self._incarnations.check(txn)
            writers.record_linear(txn, stream.name, linear)
            for writer, position in sorted(at.items()):
                writers.record_position(txn, stream.name, writer, position)

        await self._database.run("record_positions", work)

    async def follower_positions(self, follower: str) -> Mapping[tuple[str, str], Token]:
        """A named follower's durable positions by (stream, writer)."""
        return await self._run(
            "follower_positions",
            lambda txn: named_followers.positions(txn, follower),
            read_only=True,
        )

    async def record_follower(
        self, follower: str, positions: Mapping[tuple[str, str], Token]
    ) -> None:
        """Record a follower's positions."""
        await self._run(
            "record_follower", lambda txn: named_followers.record(txn, follower, positions)
        )

    async def renew_lease(
        self, follower: str, streams: Sequence[str] | None, lease_s: float
    ) -> None:
        """Retain facts that a named follower has not acknowledged."""
        await self._run(
            "renew_lease",
            lambda txn: named_followers.renew_lease(
                txn, follower, streams, lease_s, is_running=True
            ),
        )

    async def named_followers(self) -> Sequence[NamedFollower]:
        """All named followers, by name."""
        return await self._run("named_followers", named_followers.named, read_only=True)

    async def mark(self, stream: Stream, keep_s: float, max_s: float) -> AgedPositions:
        """Mark the stream's current position, and return past ones."""
        return await self._run("mark", lambda txn: retention.mark(txn, stream, keep_s, max_s))

    async def trim(self, stream: Stream, cap: Token, forced: Token, limit: int) -> TrimResult:
        """Delete the oldest facts that may be trimmed."""
        return await self._run("trim", lambda txn: retention.trim(txn, stream, cap, forced, limit))

    async def _run(
        self, name: str, work: Callable[[Transaction], T], *, read_only: bool = False
    ) -> T:
        """Run ``work``, unless the server is from before a failover that the process has seen.

        :raises OlderServer: the connection is to such a server
        """

        def checked(txn: Transaction) -> T:
            self._incarnations.check_read(txn)
            return work(txn)

        return await self._database.run(name, checked, read_only=read_only)
