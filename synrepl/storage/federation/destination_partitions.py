"""Which process sends to which partition of destinations, and how far each partition has got what it was to get."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from synrepl.core.errors import Refused
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.pending_rows import array_text

#: First half of the keys of advisory locks: 'FD' << 16; see the migration for the second half.
_LOCKS = 0x46440000
_WRITES = 1024


class PartitionsLost(Refused):
    """destination partitions {partitions} were taken over by another process; nothing was written, and this process sends nothing for them any more"""


class ClaimedPartition(NamedTuple):
    """A partition that a process has claimed.

    :ivar previous_owner: the process that had it and did not give it back; None: nobody
    :ivar position: see the migration
    :ivar device_lists_position: see the migration
    """

    partition: int
    epoch: int
    previous_owner: str | None
    position: int
    device_lists_position: int


def lock_partitions(txn: Transaction, partitions: Collection[int]) -> Sequence[int]:
    """Try to lock partitions for the session; those that were locked."""
    txn.execute(
        "SELECT p FROM unnest(%s::int[]) AS p WHERE pg_try_advisory_lock(%s, p) ORDER BY p",
        (array_text(sorted(partitions)), _LOCKS),
    )
    return [int(number) for (number,) in txn.fetchall()]


def claim_partitions(
    txn: Transaction, partitions: Collection[int], owner: str
) -> Sequence[ClaimedPartition]:
    """Take partitions over, whose locks the session has; waits for transactions that write for them."""
    wanted = array_text(sorted(partitions))
    txn.execute(
        "SELECT pg_advisory_xact_lock(%s, p + %s) FROM unnest(%s::int[]) AS p",
        (_LOCKS, _WRITES, wanted),
    )
    txn.execute(
        "UPDATE synrepl._destination_partitions p SET epoch = p.epoch + 1, owner = %s"
        " FROM (SELECT partition, owner FROM synrepl._destination_partitions"
        "  WHERE partition = ANY (%s::int[]) FOR UPDATE) AS was WHERE was.partition = p.partition"
        " RETURNING p.partition, p.epoch, was.owner, p.position, p.device_lists_position",
        (owner, wanted),
    )
    return sorted(ClaimedPartition._make(row) for row in txn.fetchall())


def enter_partitions(txn: Transaction, epochs: Mapping[int, int]) -> None:
    """Keep others from taking over partitions until the transaction ends.

    :param epochs: of the claims, by partition
    :raises PartitionsLost: some were taken over already
    """
    wanted = array_text(sorted(epochs))
    txn.execute(
        "SELECT pg_advisory_xact_lock_shared(%s, p + %s) FROM unnest(%s::int[]) AS p",
        (_LOCKS, _WRITES, wanted),
    )
    # A statement of its own, after the locks: it must see an epoch that was raised meanwhile.
    txn.execute(
        "SELECT partition, epoch FROM synrepl._destination_partitions"
        " WHERE partition = ANY (%s::int[])",
        (wanted,),
    )
    lost = sorted(number for number, epoch in txn.fetchall() if epoch != epochs[number])
    if lost:
        raise PartitionsLost(partitions=", ".join(map(str, lost)))


def write_positions(txn: Transaction, positions: Mapping[int, int]) -> None:
    """Record the positions of partitions; see :func:`enter_partitions`."""
    if positions:
        txn.execute(
            "UPDATE synrepl._destination_partitions p SET position = n.position"
            " FROM unnest(%s::int[], %s::bigint[]) AS n (partition, position)"
            " WHERE p.partition = n.partition AND p.position < n.position",
            (array_text(list(positions)), array_text(list(positions.values()))),
        )


def write_device_lists_position(
    txn: Transaction, partitions: Collection[int], position: int
) -> None:
    """Record how far pokes about device lists are written."""
    txn.execute(
        "UPDATE synrepl._destination_partitions SET device_lists_position = %s"
        " WHERE partition = ANY (%s::int[])",
        (position, array_text(list(partitions))),
    )


def release_partitions(txn: Transaction, epochs: Mapping[int, int]) -> None:
    """Give partitions back: whoever claims them next need not wait."""
    txn.execute(
        "UPDATE synrepl._destination_partitions p SET owner = NULL"
        " FROM unnest(%s::int[], %s::bigint[]) AS n (partition, epoch)"
        " WHERE p.partition = n.partition AND p.epoch = n.epoch",
        (array_text(list(epochs)), array_text(list(epochs.values()))),
    )


class PartitionState(NamedTuple):
    """A partition, for status.

    :ivar epoch: number of claims
    :ivar owner: the process that claimed it last; None: it was given back
    :ivar is_held: a process holds its lock
    """

    partition: int
    epoch: int
    owner: str | None
    is_held: bool
    position: int


def partition_states(txn: Transaction) -> Sequence[PartitionState]:
    """All partitions."""
    txn.execute(
        "SELECT p.partition, p.epoch, p.owner, EXISTS (SELECT FROM pg_locks l WHERE l.locktype = 'advisory'"
        "  AND l.granted AND l.objsubid = 2 AND l.classid = %s::bigint::oid AND l.objid = p.partition::oid"
        "  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())),"
        " p.position FROM synrepl._destination_partitions p ORDER BY p.partition",
        (_LOCKS,),
    )
    return [PartitionState._make(row) for row in txn.fetchall()]
