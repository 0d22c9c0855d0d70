"""Destinations that have failed, shared by all processes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from synrepl.federation.back_off import DestinationFailure
from synrepl.storage.database import Transaction

_COLUMNS = "failing_since_ms, failures, failed_at_ms, retry_at_ms, reason"


class FailingDestination(NamedTuple):
    """A destination that has failed, for status."""

    server_name: str
    failure: DestinationFailure


def read_failure(txn: Transaction, server_name: str) -> DestinationFailure | None:
    """The failures of a destination; None if it has none."""
    txn.execute(
        f"SELECT {_COLUMNS} FROM synrepl._destinations WHERE server_name = %s", (server_name,)
    )
    row = txn.fetchone_or_none()
    return None if row is None else DestinationFailure(*row)


def read_failures(
    txn: Transaction, server_names: Collection[str]
) -> Mapping[str, DestinationFailure]:
    """The failures of those of some destinations that have any."""
    txn.execute(
        f"SELECT server_name, {_COLUMNS} FROM synrepl._destinations WHERE server_name = ANY (%s::text[])",
        (list(server_names),),
    )
    return {row[0]: DestinationFailure(*row[1:]) for row in txn.fetchall()}


def lock_failure(txn: Transaction, server_name: str) -> DestinationFailure | None:
    """The same; nobody else counts failures of the destination until the transaction ends."""
    txn.execute(
        "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"destination {server_name}",)
    )
    return read_failure(txn, server_name)


def write_failure(txn: Transaction, server_name: str, failure: DestinationFailure) -> None:
    """Record the failures of a destination; see :func:`lock_failure`."""
    txn.execute(
        f"INSERT INTO synrepl._destinations (server_name, {_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s)"
        " ON CONFLICT (server_name) DO UPDATE SET failing_since_ms = EXCLUDED.failing_since_ms,"
        " failures = EXCLUDED.failures, failed_at_ms = EXCLUDED.failed_at_ms,"
        " retry_at_ms = EXCLUDED.retry_at_ms, reason = EXCLUDED.reason",
        (server_name, *failure),
    )


def delete_failure(txn: Transaction, server_name: str) -> bool:
    """Record that a destination is well; whether it was failing."""
    txn.execute("DELETE FROM synrepl._destinations WHERE server_name = %s", (server_name,))
    return txn.rowcount > 0


def failing_destinations(txn: Transaction, limit: int) -> Sequence[FailingDestination]:
    """Destinations that have failed, those that fail for longest first."""
    txn.execute(
        f"SELECT server_name, {_COLUMNS} FROM synrepl._destinations"
        " ORDER BY failing_since_ms, server_name LIMIT %s",
        (limit,),
    )
    return [FailingDestination(row[0], DestinationFailure(*row[1:])) for row in txn.fetchall()]


def count_failing(txn: Transaction) -> int:
    """Number of destinations that have failed."""
    return int(txn.execute("SELECT count(*) FROM synrepl._destinations").fetchone()[0])
