"""Sessions of a database: transactions, locks and waits, and findings about them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from synrepl.storage.database import Transaction
from synrepl.tools.doctor.report import Finding, Severity
from synrepl.tools.doctor.thresholds import Thresholds

#: Maximum length of a query in a report, in characters.
QUERY_CHARS = 120

_LITERAL = re.compile(r"'(?:[^']|'')*(?:'|$)|\$(\w*)\$.*?(?:\$\1\$|$)", re.DOTALL)
_SPACE = re.compile(r"\s+")

_SESSIONS = """
SELECT pid, coalesce(application_name, ''), coalesce(state, ''), left(query, 2000),
       xact_start IS NOT NULL,
       extract(epoch FROM clock_timestamp() - coalesce(xact_start, state_change))::float8,
       backend_xid IS NOT NULL,
       host(client_addr) || ':' || client_port,
       CASE WHEN wait_event_type = 'Lock' THEN pg_blocking_pids(pid) ELSE '{}' END
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
  -- Of others only this user's name is shown, and those of the server itself have none.
  AND coalesce(backend_type, CASE WHEN usename IS NOT NULL THEN 'client backend' END)
      = 'client backend'
"""

#: Tables that each backend writes to or locks against writers, and those that it also locks against
#: readers. A lock is kept until the transaction ends.
_LOCKS = """
SELECT pid, array_agg(DISTINCT relname::text ORDER BY relname::text),
       coalesce(array_agg(DISTINCT relname::text) FILTER (WHERE mode = 'AccessExclusiveLock'), '{}')
FROM pg_locks JOIN pg_class ON pg_class.oid = relation
WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND mode IN ('RowExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
               'AccessExclusiveLock')
  AND granted AND relkind IN ('r', 'p')
GROUP BY pid
"""


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session of another client.

    :ivar in_transaction: whether a transaction is open
    :ivar age_s: age of the transaction or, outside of one, of the last change of state, in seconds;
        None if this user may not see it
    :ivar query: the last query, shortened, without its values
    :ivar wrote: whether the transaction has written something
    :ivar client: address and port of the client; None on a unix socket
    :ivar waits_for: backends that hold a lock it needs
    :ivar tables: tables that it writes to or locks against writers
    :ivar locked: tables that it locks against readers, too
    """

    pid: int
    application: str
    state: str
    in_transaction: bool
    age_s: float | None
    query: str
    wrote: bool = False
    client: str | None = None
    waits_for: tuple[int, ...] = ()
    tables: tuple[str, ...] = ()
    locked: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        """A description for a person."""
        age = "of unknown age" if self.age_s is None else f"for {self.age_s:.0f} s"
        name = f" ({self.application})" if self.application else ""
        client = f", from {self.client}" if self.client else ""
        waits = (
            f", waits for backend {', '.join(map(str, self.waits_for))}" if self.waits_for else ""
        )
        state = f"{self.state or 'hidden'} {age}{waits}"
        return f"backend {self.pid}{name}, {state}{client}: {self.query or '-'}"


def masked(query: str) -> str:
    """A query on one line, shortened, without quoted values, which may be secret."""
    return _SPACE.sub(" ", _LITERAL.sub("'…'", query)).strip()[:QUERY_CHARS]


def open_sessions(txn: Transaction) -> dict[int, OpenSession]:
    """The other connections to this database, by backend PID."""
    locks = {
        int(pid): (tuple(held), tuple(locked))
        for pid, held, locked in txn.execute(_LOCKS).fetchall()
    }
    txn.execute(_SESSIONS)
    return {
        int(pid): OpenSession(
            int(pid),
            str(name),
            str(state),
            bool(inside),
            None if age is None else float(age),
            masked(str(query or "")),
            bool(wrote),
            None if client is None else str(client),
            tuple(map(int, waits_for)),
            *locks.get(int(pid), ()),
        )
        for pid, name, state, query, inside, age, wrote, client, waits_for in txn.fetchall()
    }


def hidden(sessions: Iterable[OpenSession]) -> list[Finding]:
    """Find sessions that this user may not see."""
    count = sum(session.age_s is None for session in sessions)
    if not count:
        return []
    return [
        Finding(
            "sessions-hidden",
            Severity.UNSEEN,
            f"{count} connections of other users cannot be looked into: their open transactions,"
            " and what these hold, are not known",
            "connections",
            "GRANT pg_read_all_stats TO the user of this DSN",
        )
    ]


def old_transactions(
    sessions: Iterable[OpenSession],
    thresholds: Thresholds,
    streams: Callable[[OpenSession], Sequence[str]],
) -> Iterator[Finding]:
    """Find transactions that are too old.

    A transaction that is active and has written nothing, for instance a dump, blocks nobody and is
    only a note.

    :param streams: whose tables a transaction writes to or locks
    """
    for session in sessions:
        if not session.in_transaction or session.age_s is None:
            continue
        if session.age_s > thresholds.transaction_s:
            idle = session.state.startswith("idle")
            stuck = idle or session.wrote or session.waits_for
            yield Finding(
                "idle-transaction" if idle else "long-transaction",
                Severity.WARNING if stuck else Severity.NOTE,
                f"an open transaction {_holds(session, streams(session))}: {session.description}",
                f"backend {session.pid}",
                _cure(session),
            )


def locked_tables(session: OpenSession, streams: Sequence[str]) -> Iterator[Finding]:
    """Find tables that one transaction has locked against everybody.

    :param streams: the streams of these tables
    """
    if streams:
        yield Finding(
            "table-locked",
            Severity.ERROR,
            f"nobody can read or write {', '.join(session.locked)}, so neither could this:"
            f" {session.description}",
            ", ".join(streams),
            _cure(session),
        )


def _holds(session: OpenSession, streams: Sequence[str]) -> str:
    if streams:
        return f"holds {', '.join(streams)}"
    return "holds what it wrote" if session.wrote else "has written nothing"


def _cure(session: OpenSession) -> str:
    port = (session.client or "").rpartition(":")[2]
    which = f" ('ss -tnp sport = :{port}' on its machine names it)" if port else ""
    return (
        f"find out what that process waits for{which}; SELECT pg_terminate_backend({session.pid})"
        " rolls its transaction back"
    )
