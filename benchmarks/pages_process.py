"""A follower that fetches what it missed: ``database DSN UPTO`` or ``http URL UPTO``.

Pages through ``events`` as a follower does when it fills a gap, and reports
the number of rows and the seconds.
"""

from __future__ import annotations

import sys
from time import perf_counter
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from benchmarks.child import limit_lifetime, report
from benchmarks.recorded import WRITER
from synrepl.adapters.http.client import HttpClient
from synrepl.adapters.http.source import HttpSource
from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.adapters.postgres.session import open_session
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.tokens import Range, Token
from synrepl.services.sources import PAGE_ROWS, FactSource
from synrepl.storage.postgres.store import PostgresStore
from synrepl.streams.synapse.events import EVENTS


async def fetch(source: FactSource, upto: Token) -> int:
    """Fetch all pages; return the number of rows."""
    after = rows = 0
    while after < upto:
        page = await source.page(EVENTS, Range(after, upto), WRITER, PAGE_ROWS)
        rows += sum(len(fact.rows) for fact in page.facts)
        after = page.upto
    return rows


async def measure(clock: Any, kind: str, where: str, upto: str) -> None:
    """Measure once."""
    source: FactSource
    if kind == "http":
        client = HttpClient(clock, where)
        source, close = HttpSource(client), client.close
    else:
        database = PostgresDatabase(clock, where, "worker1")
        source = PostgresStore(
            TwistedScheduler(clock), database, lambda: open_session(clock, where, "worker1"), "this"
        )
        close = database.close
    began = perf_counter()
    rows = await fetch(source, int(upto))
    report({"rows": rows, "wall": perf_counter() - began})
    await close()


if __name__ == "__main__":
    limit_lifetime()
    react(lambda clock, *given: Deferred.fromCoroutine(measure(clock, *given)), sys.argv[1:])
