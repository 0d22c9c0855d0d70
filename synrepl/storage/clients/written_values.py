"""Writes current values in the transaction of the facts that tell of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from synrepl.core.tokens import Token
from synrepl.storage.database import DeferredScript, PlannedOnce, Transaction
from synrepl.storage.outbox import Outbox
from synrepl.streams.definition import Stream
from synrepl.streams.row import Row


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

    It is sent with what follows. Who runs it holds the lock of the row if there is one.
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
