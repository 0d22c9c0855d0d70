"""The database interfaces of storage and services, and their errors.

A *work function* takes a :class:`Transaction` and runs SQL in it; a
:class:`Database` runs work functions, each in a transaction of its own; a
:class:`DatabaseSession` does so on one connection, which can hold session-level locks.
No driver appears here or above: an adapter translates every error of its driver
into one of the errors below (or into ``DatabaseAway`` and ``BadValue`` of
:mod:`synrepl.storage.store`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from synrepl.core.errors import StorageError, Unavailable

T = TypeVar("T")

#: One row of a result. ``json`` and ``jsonb`` columns are decoded, with exact integers
#: of any size; ``bytea`` is ``bytes``.
Record = tuple[Any, ...]

#: Values for the ``%s`` (or ``%(name)s``) placeholders of a statement. JSON is
#: passed as encoded text, a list as an array.
Values = Sequence[object] | Mapping[str, object]


class Isolation(StrEnum):
    """Transaction isolation levels of Postgres."""

    READ_COMMITTED = "READ COMMITTED"
    REPEATABLE_READ = "REPEATABLE READ"
    SERIALIZABLE = "SERIALIZABLE"


class QueryFailed(StorageError):
    """the database refused a statement of {name!r} (SQLSTATE {sqlstate}): {reason}"""

    @property
    def sqlstate(self) -> str:
        """Postgres's five-character code; "" when the driver gave none."""
        return str(self.facts.get("sqlstate", ""))


class ConstraintViolation(QueryFailed):
    """a row of {name!r} breaks constraint {constraint!r} (SQLSTATE {sqlstate}): {reason}"""

    @property
    def constraint(self) -> str:
        """The name of the constraint or unique index."""
        return str(self.facts.get("constraint", ""))


class UniqueViolation(ConstraintViolation):
    """{name!r} would store a second row where {constraint!r} allows one: {reason}"""


class SerializationFailure(QueryFailed):
    """{name!r} kept colliding with other transactions and was given up after {attempts} attempts (SQLSTATE {sqlstate}): {reason}"""


class StalePlans(SerializationFailure):
    """statements that a connection had prepared for {name!r} are gone or changed, and it was given up after {attempts} attempts (SQLSTATE {sqlstate}): {reason}; a connection pooler between here and the server must be in session mode"""


class LockNotAvailable(QueryFailed):
    """{name!r} could not get a lock in time (SQLSTATE {sqlstate}): {reason}"""


class RaisedByDatabase(StorageError):
    """the database refused {name!r} with code {code}: {reason}"""

    @property
    def code(self) -> str:
        """The ``SY…`` code that one of our own SQL functions raised."""
        return str(self.facts.get("code", ""))

    @property
    def detail(self) -> str:
        """The ``DETAIL`` of the error; "" without one."""
        return str(self.facts.get("detail", ""))


class NoRow(StorageError):
    """a statement of {name!r} gave no row where one was expected"""


class WorkEndedTransaction(StorageError):
    """{name!r} left its transaction in state {state!r} instead of open; work functions must neither commit, roll back nor go on after a failed statement"""


class CommitUnknown(StorageError):
    """the connection to {where} was lost while {name!r} committed (transaction {xid}) and nobody can say whether it did: {reason}; check the data before you repeat it"""


class DatabaseBusy(Unavailable):
    """{waiting} transactions already wait for one of {connections} connections to {where}; try again later, or raise the limits"""


class Transaction(Protocol):
    """One open transaction, usable only in the thread and during the call of the work function.

    Every method may raise :class:`QueryFailed` or a subclass of it,
    :class:`RaisedByDatabase`, ``BadValue`` (a value Postgres cannot hold in
    its column) and an error of the connection that ``Database.run`` handles.
    After an error the work function must return or raise: only ROLLBACK is possible.
    """

    @property
    def rowcount(self) -> int:
        """Rows that the last statement returned or changed; -1 where it does not apply."""

    def execute(self, sql: str, params: Values = ()) -> Self:
        """Run one statement (or a script, when there are no ``params``).

        :param sql: with ``%s`` for each of ``params``; without ``params`` it is
            sent as it is, so ``%`` is not doubled
        :returns: the transaction, to fetch from: ``txn.execute("…").fetchone()``
        """

    def insert_many(
        self, sql: str, rows: Iterable[Values], template: str | None = None
    ) -> list[Record]:
        """Run one multi-row statement per thousand ``rows``.

        :param sql: with a single ``%s`` where the rows go, as in
            ``INSERT INTO t (a, b) VALUES %s RETURNING a``
        :param template: the SQL of one row, such as ``(%s, %s::jsonb)``
        :returns: the ``RETURNING`` results of all rows; ``rowcount`` counts all
        """

    def fetchone(self) -> Record:
        """The next row of the last statement.

        :raises NoRow: there is none
        """

    def fetchone_or_none(self) -> Record | None:
        """The next row of the last statement, or None after the last one."""

    def fetchall(self) -> list[Record]:
        """The remaining rows. All are in memory, so limit long results."""

    def __iter__(self) -> Iterator[Record]:
        """The remaining rows, one by one."""

    def copy_in(self, sql: str, chunks: Iterable[str] | Iterable[bytes]) -> int:
        """Feed ``COPY … FROM STDIN`` in bounded parts; returns the number of rows."""

    def copy_out(self, sql: str, write: Callable[[bytes], object]) -> int:
        """Pass the output of ``COPY … TO STDOUT`` to ``write``; returns the number of rows."""


class Database(Protocol):
    """Runs transactions."""

    async def run(
        self,
        name: str,
        work: Callable[[Transaction], T],
        *,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> T:
        """Run ``work`` in one transaction and commit; roll back when it raises.

        ``work`` runs in another thread and may run **more than once**: after
        a deadlock or serialisation failure, when prepared statements have become stale, and when the
        connection is lost without a commit. So it must be repeatable: it changes nothing outside
        its transaction, and reads its input from the start each time (no partly
        consumed iterators).

        :param name: name of the work, for logs and errors
        :raises DatabaseAway: unreachable for longer than the time limit
        :raises DatabaseBusy: too many transactions are waiting already
        :raises CommitUnknown: the connection was lost during COMMIT, and the outcome
            cannot be determined, as when the *server* crashes at that moment
        :raises SerializationFailure: it kept colliding with other transactions
        """


class Prepared(NamedTuple):
    """A prepared statement, which a connection plans once.

    :ivar name: unique among the statements of a connection
    :ivar sql: with ``$1``, ``$2``, … for its parameters
    """

    name: str
    sql: str


class PlannedOnce(str):
    """A statement that is run often: as a part of a :class:`Script`, a connection prepares it once.

    Each text stays prepared as long as the connection, so there should be few.
    """

    __slots__ = ()


class Script(str):
    """Statements that :meth:`Transaction.execute` sends in one round trip.

    Parameters are those of all parts in their order; the result is that of the last one.

    :param parts: statements, those that are :class:`PlannedOnce` prepared
    """

    parts: tuple[str, ...]

    def __new__(cls, parts: Iterable[str]) -> Self:
        """The script, whose text is that of its parts."""
        kept = tuple(parts)
        made = super().__new__(cls, ";\n".join(kept))
        made.parts = kept
        return made


def planned(sql: str) -> Script:
    """A statement that is run often; see :class:`PlannedOnce`."""
    return Script([PlannedOnce(sql)])


class DeferredScript(Script):
    """A script whose result nobody needs: it is sent with what follows, be that a statement or COMMIT.

    So its errors are raised there.
    """


#: Has the prepared statements of a transaction run by plans for any values: for look-ups in indexes, for which plans for the
#: values at hand would be no other, and take longer to make than to run.
GENERIC_PLANS = DeferredScript(["SET LOCAL plan_cache_mode = force_generic_plan"])

#: Columns for the last statement of an :class:`OpeningScript`: the ID of the transaction; and a commit that
#: waits for the disk: the server must not lose, in a crash that this process survives, positions and
#: effects that the process saw committed.
OPENING_COLUMNS = (
    "pg_current_xact_id()::text, CASE current_setting('synchronous_commit')"
    " WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END"
)


class OpeningScript(Script):
    """A script that a transaction begins with, in the same round trip.

    The last columns of its last statement are :data:`OPENING_COLUMNS`.
    """


class Statements(Protocol):
    """Runs single statements with low latency, each in its own transaction."""

    async def run(self, prepared: Prepared, params: Values) -> list[Record]:
        """Run one statement and commit.

        :raises CommitUnknown: the connection was lost before the answer
        :raises DatabaseAway: it could not be sent, so nothing was done
        :raises DatabaseBusy: too many are waiting already
        """


class DatabaseSession(Protocol):
    """One connection kept open, for session-level locks.

    It never reconnects: the locks are lost with the connection, and the owner decides
    what to do then.
    """

    @property
    def backend_pid(self) -> int:
        """The PID of the server process of the connection; 0 once the connection is over."""

    def on_lost(self, call: Callable[[str], object]) -> None:
        """Call ``call(reason)`` once when the connection is lost, but not when it is closed.

        A loss that has already happened is reported, too.
        """

    async def run(self, work: Callable[[Transaction], T]) -> T:
        """Run ``work`` once in one transaction, in the order of the calls.

        Session-level locks taken in it outlive it, even if it is rolled back.

        :raises DatabaseAway: the connection is lost or closed; whether a
            transaction that was committing took effect is unknown
        """

    async def close(self, last: Callable[[Transaction], object] | None = None) -> None:
        """Close the connection, which releases its locks.

        :param last: work to run first; its effects are visible when this returns
        :raises DatabaseAway: ``last`` could not be run, or did not finish in time; the
            connection is closed all the same
        """


def value(txn: Transaction, sql: str, params: Values = ()) -> Any:
    """The first column of the first row of a statement; it must return one."""
    return txn.execute(sql, params).fetchone()[0]
