"""What storage and services know of a database: three words and the ways they fail.

A *work function* takes a :class:`Transaction` and runs SQL in it; a
:class:`Database` runs work functions, each in a transaction of its own; a
:class:`DatabaseSession` does so on one connection, which can hold session-level locks.
No driver appears here or above: an adapter turns every error of its driver
into one of the errors below (or into ``DatabaseAway`` and ``BadValue`` of
:mod:`synrepl.storage.store`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from synrepl.core.errors import StorageError, Unavailable

T = TypeVar("T")

#: One row of a result. Columns of type ``json`` and ``jsonb`` come decoded, with
#: whole numbers exact whatever their size; ``bytea`` comes as ``bytes``.
Record = tuple[Any, ...]

#: Values for the ``%s`` (or ``%(name)s``) placeholders of a statement. JSON is
#: passed as encoded text, a list as an array.
Values = Sequence[object] | Mapping[str, object]


class Isolation(StrEnum):
    """How much of other transactions a transaction sees, as in Postgres's documentation."""

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
        """What the function gave as ``DETAIL``; "" when nothing."""
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
    """One open transaction. Only for the thread and for the time of the work function.

    Every method may raise :class:`QueryFailed` or a subclass of it,
    :class:`RaisedByDatabase`, ``BadValue`` (a value Postgres cannot hold in
    its column) and an error of the connection that ``Database.run`` handles.
    After an error, leave: only ROLLBACK is possible.
    """

    @property
    def rowcount(self) -> int:
        """Rows that the last statement returned or changed; -1 when that means nothing."""

    def execute(self, sql: str, params: Values = ()) -> Self:
        """Run one statement (or a script, when there are no ``params``).

        :param sql: with ``%s`` for each of ``params``; without ``params`` it is
            sent as it is, so that ``%`` needs no doubling
        :returns: the transaction, to fetch from: ``txn.execute("…").fetchone()``
        """

    def insert_many(
        self, sql: str, rows: Iterable[Values], template: str | None = None
    ) -> list[Record]:
        """Run one multi-row statement per thousand ``rows``.

        :param sql: with a single ``%s`` where the rows go, as in
            ``INSERT INTO t (a, b) VALUES %s RETURNING a``
        :param template: how one row is written, such as ``(%s, %s::jsonb)``
        :returns: what ``RETURNING`` gave for all of them; ``rowcount`` counts all
        """

    def fetchone(self) -> Record:
        """The next row of the last statement.

        :raises NoRow: there is none
        """

    def fetchone_or_none(self) -> Record | None:
        """The next row of the last statement, or None after the last one."""

    def fetchall(self) -> list[Record]:
        """The remaining rows. They are all in memory: put a LIMIT on what may be long."""

    def __iter__(self) -> Iterator[Record]:
        """The remaining rows, one by one."""

    def copy_in(self, sql: str, chunks: Iterable[str] | Iterable[bytes]) -> int:
        """Feed ``COPY … FROM STDIN``, a bounded part at a time; the number of rows."""

    def copy_out(self, sql: str, write: Callable[[bytes], object]) -> int:
        """Give what ``COPY … TO STDOUT`` sends to ``write``, as it comes; the number of rows."""


class Database(Protocol):
    """Somewhere to run transactions."""

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
        a deadlock or serialisation failure, and when the connection is lost
        without a commit. So it must be repeatable: it changes nothing outside
        its transaction, and reads its input afresh each time (no half-used
        iterators).

        :param name: what it does, for logs and errors
        :raises DatabaseAway: not reachable for longer than the time limit
        :raises DatabaseBusy: too many transactions are waiting already
        :raises CommitUnknown: lost during COMMIT, and the outcome cannot be found
            out; to be expected when the *server* crashes at that moment
        :raises SerializationFailure: it kept colliding with other transactions
        """


class Prepared(NamedTuple):
    """A statement that a connection plans once.

    :ivar name: unique among the statements of a connection
    :ivar sql: with ``$1``, ``$2``, … for its parameters
    """

    name: str
    sql: str


class Statements(Protocol):
    """Runs single statements, each a transaction of its own, soon."""

    async def run(self, prepared: Prepared, params: Values) -> list[Record]:
        """Run one statement and commit.

        :raises CommitUnknown: the connection was lost before the answer came
        :raises DatabaseAway: it could not be sent, so nothing was done
        :raises DatabaseBusy: too many wait already
        """


class DatabaseSession(Protocol):
    """One connection kept open, for locks that live as long as it does.

    It never reconnects: with the connection the locks are gone, and what that
    means is for the owner to decide.
    """

    def on_lost(self, call: Callable[[str], object]) -> None:
        """Have ``call(reason)`` called once when the connection is lost, not when it is closed.

        A loss that has already happened is reported too.
        """

    async def run(self, work: Callable[[Transaction], T]) -> T:
        """Run ``work`` in one transaction, after those asked for before; never run again.

        Session-level locks taken in it stay when it ends, also when it is rolled back.

        :raises DatabaseAway: the connection is lost or closed; whether a
            transaction that was being committed took effect is not known
        """

    async def close(self, last: Callable[[Transaction], object] | None = None) -> None:
        """End the connection, and the locks with it.

        :param last: run before that, so that its effects are there when this returns
        :raises DatabaseAway: ``last`` could not be run, or was not answered in time; the
            connection is ended all the same
        """
