"""Destinations for which something waits, or that fail, as operators see them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from synrepl.federation.partitions import partition_of
from synrepl.storage.database import Transaction, value
from synrepl.storage.federation.destination_partitions import PartitionState, partition_states
from synrepl.storage.rooms.tables.pending_rows import array_text


class DestinationOverview(NamedTuple):
    """A destination that fails, or for which something waits.

    :ivar sender: the process that sends to it; None: none does now
    :ivar failing_since_ms: milliseconds since 1970; None: it does not fail
    :ivar failures: their number, in a row
    :ivar retry_at_ms: before, it is not asked
    :ivar reason: of the last failure
    :ivar position: of ``events``, up to which it has got what it was to get; None: as all others of its sender
    :ivar messages: number of messages to its devices that wait
    :ivar device_lists: number of users of whose devices it is to be told
    """

    destination: str
    sender: str | None
    failing_since_ms: int | None
    failures: int
    retry_at_ms: int | None
    reason: str | None
    position: int | None
    messages: int
    device_lists: int


_LIST = """
    SELECT n.name, d.failing_since_ms, coalesce(d.failures, 0), d.retry_at_ms, d.reason, q.position,
           (SELECT count(*) FROM synrepl._outgoing_messages m WHERE m.destination = n.name),
           (SELECT count(*) FROM synrepl._device_list_pokes p WHERE p.destination = n.name)
      FROM (SELECT server_name AS name FROM synrepl._destinations
             UNION SELECT destination FROM synrepl._destination_queues
             UNION SELECT destination FROM synrepl._outgoing_messages
             UNION SELECT destination FROM synrepl._device_list_pokes) AS n
      LEFT JOIN synrepl._destinations d ON d.server_name = n.name
      LEFT JOIN synrepl._destination_queues q ON q.destination = n.name
     ORDER BY d.failing_since_ms NULLS LAST, n.name LIMIT %s
"""


def list_destinations(txn: Transaction, limit: int) -> Sequence[DestinationOverview]:
    """Destinations that fail or for which something waits, those that fail for longest first."""
    owners = {each.partition: each for each in partition_states(txn)}
    txn.execute(_LIST, (limit,))
    return [
        DestinationOverview(name, _sender(owners[partition_of(name)]), *figures)
        for name, *figures in txn.fetchall()
    ]


_MAY_READ = (
    "SELECT bool_and(has_table_privilege('synrepl.' || name, 'SELECT')) FROM unnest(ARRAY["
    "'_destinations', '_destination_queues', '_destination_partitions', '_outgoing_messages',"
    " '_device_list_pokes', '_streams']) AS name"
)


def _sender(partition: PartitionState) -> str | None:
    return partition.owner if partition.is_held else None


def reset_destinations(txn: Transaction, names: Collection[str]) -> Sequence[str]:
    """Have destinations asked again although they have failed; returns those that had."""
    txn.execute(
        "DELETE FROM synrepl._destinations WHERE server_name = ANY (%s::text[]) RETURNING server_name",
        (array_text([each for each in names if "\0" not in each]),),
    )
    return sorted(name for (name,) in txn.fetchall())


class SendingFigures(NamedTuple):
    """How sending to other servers is going, by the database alone.

    :ivar unowned: partitions that are behind the stream ``events``, and to which no process sends
    :ivar position: of ``events``
    :ivar longest: destinations that fail for longest, and for which something waits
    """

    unowned: Sequence[PartitionState]
    position: int
    longest: Sequence[DestinationOverview]


def sending_figures(txn: Transaction, limit: int) -> SendingFigures | None:
    """What is to be known of sending; None if nobody has ever sent, or this user may not read it.

    :param limit: of the destinations
    """
    if not value(txn, _MAY_READ):
        return None
    states = partition_states(txn)
    if not any(each.epoch for each in states):
        return None
    txn.execute("SELECT position FROM synrepl._streams WHERE stream = 'events'")
    row = txn.fetchone_or_none()
    position = 0 if row is None else int(row[0])
    longest = [
        each
        for each in list_destinations(txn, limit)
        if each.failing_since_ms is not None
        and (each.position is not None or each.messages or each.device_lists)
    ]
    unowned = [each for each in states if not each.is_held and each.position < position]
    return SendingFigures(unowned, position, longest)
