"""A process that is killed while it holds tokens; run by the tests.

    python -m tests.storage.doomed_writer DSN reserved|inserted

It prints the tokens that it holds and then does nothing any more.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.core.tokens import Token
from synrepl.storage.database import Transaction
from synrepl.storage.writers import Claim, register
from tests.storage.postgres import Process, reactor
from tests.storage.samples import NOTES, note

WRITER = "doomed"


def report(tokens: Sequence[Token]) -> None:
    """Print the held tokens."""
    print(*tokens, flush=True)


async def hold(dsn: str, how: str) -> None:
    """Reserve tokens, and keep them for ever."""
    process = Process(dsn, "doomed")
    lease = await process.store.open_writer(WRITER, [NOTES])
    if how == "reserved":
        report(await lease.reserve(NOTES, 3, 0))
        return
    table, epoch = process.store.table(NOTES), lease.epoch(NOTES)

    def insert(txn: Transaction) -> None:
        claim = Claim(register(txn, NOTES.name, WRITER), epoch, notify=False)
        report(table.append(txn, claim, WRITER, [[note("never")], [note("committed")]], 0))
        threading.Event().wait()

    await process.database.run("insert", insert)


if __name__ == "__main__":
    Deferred.fromCoroutine(hold(*sys.argv[1:])).addErrback(
        lambda failure: Logger().failure("cannot hold anything", failure=failure)
    )
    reactor.run()
