"""Destinations that are behind their partition, or in a transaction that does not follow from the events."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.pending_rows import array_text


class RecordedTransaction(NamedTuple):
    """A transaction that may have arrived, and is sent again as it was.

    :ivar txn_id: its ID
    :ivar events: stream IDs of its events, ascending
    :ivar messages: numbers of its messages to devices
    """

    txn_id: str
    events: tuple[int, ...] = ()
    messages: tuple[int, ...] = ()


class StoredQueue(NamedTuple):
    """A row of ``_destination_queues``; see the migration.

    :ivar transaction: the one that may have arrived; None: there is none
    """

    destination: str
    partition: int
    position: int
    is_exact: bool
    transaction: RecordedTransaction | None

    @property
    def events(self) -> Sequence[int]:
        """The stream IDs of its events."""
        return () if self.transaction is None else self.transaction.events


def read_queues(txn: Transaction, partitions: Collection[int]) -> Sequence[StoredQueue]:
    """The rows of some partitions."""
    txn.execute(
        "SELECT destination, partition, position, is_exact, txn_id, txn_events, txn_messages"
        " FROM synrepl._destination_queues WHERE partition = ANY (%s::int[]) ORDER BY destination",
        (array_text(list(partitions)),),
    )
    return [
        StoredQueue(
            destination,
            partition,
            position,
            is_exact,
            None if txn_id is None else RecordedTransaction(txn_id, tuple(events), tuple(messages)),
        )
        for destination, partition, position, is_exact, txn_id, events, messages in txn.fetchall()
    ]


def write_queues(txn: Transaction, queues: Sequence[StoredQueue]) -> None:
    """Write rows, or replace them."""
    rows = [
        (*each[:4], None, "{}", "{}")
        if each.transaction is None
        else (
            *each[:4],
            each.transaction.txn_id,
            array_text(each.transaction.events),
            array_text(each.transaction.messages),
        )
        for each in queues
    ]
    if rows:
        txn.insert_many(
            "INSERT INTO synrepl._destination_queues"
            " (destination, partition, position, is_exact, txn_id, txn_events, txn_messages) VALUES %s"
            " ON CONFLICT (destination) DO UPDATE SET position = excluded.position,"
            " is_exact = excluded.is_exact, txn_id = excluded.txn_id, txn_events = excluded.txn_events,"
            " txn_messages = excluded.txn_messages",
            rows,
            "(%s, %s, %s, %s, %s, %s::bigint[], %s::bigint[])",
        )


def delete_queues(txn: Transaction, destinations: Collection[str]) -> None:
    """Delete the rows of destinations that have everything."""
    if destinations:
        txn.execute(
            "DELETE FROM synrepl._destination_queues WHERE destination = ANY (%s::text[])",
            (array_text(list(destinations)),),
        )


def transaction_prefix(txn: Transaction) -> str:
    """What the IDs of all transactions of this server begin with."""
    return str(txn.execute("SELECT prefix FROM synrepl._transaction_prefix").fetchone()[0])
