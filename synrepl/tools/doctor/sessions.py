"""Sessions of a database: transactions, locks and waits."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from synrepl.storage.database import Transaction
from synrepl.tools.doctor.finding import Finding, Severity

#: Maximum length of a query in a report, in characters.
QUERY_CHARS = 120

_LITERAL = re.compile(r"'(?:[^']|'')*(?:'|$)|\$(\w*)\$.*?(?:\$\1\$|$)", re.DOTALL)
_SPACE = re.compile(r"\s+")

_LOOK = """
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

#: By backend the tables that it writes to, or keeps others from writing to, and those of
#: them that it keeps others from reading; a lock is kept until the transaction ends.
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

    :ivar in_transaction: a transaction is open
    :ivar age_s: of the transaction, else since it last did something, in seconds;
        None when this user may not see it
    :ivar query: the last one, shortened, without the values in it
    :ivar wrote: the transaction has written something
    :ivar client: the other end of the connection; None on a unix socket
    :ivar waits_for: the backends that hold a lock it needs
    :ivar tables: which it writes to, or keeps others from writing to
    :ivar locked: those of them that nobody else can even read
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
    """A query on one line, shortened, with every quoted value left out: one may be a secret."""
    return _SPACE.sub(" ", _LITERAL.sub("'…'", query)).strip()[:QUERY_CHARS]


def look(txn: Transaction) -> dict[int, OpenSession]:
    """The connections to this database besides our own, by backend."""
    locks = {
        int(pid): (tuple(held), tuple(locked))
        for pid, held, locked in txn.execute(_LOCKS).fetchall()
    }
    txn.execute(_LOOK)
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
    """What could not be looked at, when this user may not see what others do."""
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
