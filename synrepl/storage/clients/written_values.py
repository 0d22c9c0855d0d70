"""Writes current values in the transaction of the facts that tell of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from synrepl.core.tokens import Token
from synrepl.storage.database import DeferredScript, PlannedOnce, Transaction
from synrepl.storage.outbox import Outbox
from synrepl.streams.definition import Stream
from synrepl.streams.row import Row


class StoredFact(NamedTuple):
    """The fact of a value that is stored."""

    writer: str
    token: Token


#: Takes a lock, until the transaction ends, of what a text stands for; also of a row that is not there yet.
LOCK = PlannedOnce("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))")


def append_with(
    outbox: Outbox,
    stream: Stream,
    rows: Sequence[Row],
    write: Callable[[Transaction, Token], object],
) -> None:
    """Append a fact, and write what has its token.

    :param write: is called with the token, when all positions wait for it: it must not wait for a lock
    """
    place = len(outbox.facts.get(stream.name, ()))
    outbox.append(stream, rows)

    def reserved(txn: Transaction, tokens: Mapping[str, Sequence[Token]]) -> None:
        write(txn, tokens[stream.name][place])

    outbox.after_reserving(reserved)


def upsert(table: str, columns: str, key: str) -> DeferredScript:
    """A statement that writes a row, whether it is new or not; it takes the values of ``columns``.

    It is sent with what follows. Who runs it holds a lock that stands for the row.
    """
    names = [each.strip() for each in columns.split(",")]
    keys = [each.strip() for each in key.split(",")]
    changed = ", ".join(f"{each} = excluded.{each}" for each in names if each not in keys)
    values = ", ".join(["%s"] * len(names))
    return DeferredScript(
        [
            PlannedOnce(
                f"INSERT INTO synrepl.{table} ({columns}) VALUES ({values})"
                f" ON CONFLICT ({key}) DO UPDATE SET {changed}"
            )
        ]
    )
