"""Messages to devices of other servers, and changes of device lists that other servers are to be told of."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.pending_rows import array_text

#: Maximum number of EDUs with messages that wait for one destination. Beyond it, the oldest go.
MAX_WAITING_EDUS = 10_000


class OutgoingMessage(NamedTuple):
    """A message to devices of another server.

    :ivar edu: JSON
    """

    message_no: int
    edu: bytes


class DeviceListPoke(NamedTuple):
    """A user of this server whose devices have changed.

    :ivar stream_id: of the change; 0 if it is not known
    """

    user_id: str
    stream_id: int


class PersistentEdus(NamedTuple):
    """What a destination is to get besides events, first in, first out."""

    messages: Sequence[OutgoingMessage]
    pokes: Sequence[DeviceListPoke]


def add_messages(txn: Transaction, edus: Sequence[tuple[str, bytes]]) -> int:
    """Keep messages until their destination has got them.

    :param edus: destinations and JSON, in order
    :returns: the number of older messages that went because too many wait for a destination
    """
    if not edus:
        return 0
    txn.insert_many("INSERT INTO synrepl._outgoing_messages (destination, edu) VALUES %s", edus)
    txn.execute(
        "DELETE FROM synrepl._outgoing_messages m USING (SELECT d, (SELECT x.message_no"
        " FROM synrepl._outgoing_messages x WHERE x.destination = d"
        " ORDER BY x.message_no DESC OFFSET %s LIMIT 1) AS last FROM unnest(%s::text[]) AS d) AS f"
        " WHERE m.destination = f.d AND m.message_no <= f.last",
        (MAX_WAITING_EDUS, array_text(sorted({name for name, _ in edus}))),
    )
    return txn.rowcount


def delete_messages(txn: Transaction, delivered: Collection[tuple[str, int]]) -> None:
    """Delete messages that their destination has got.

    :param delivered: destination and number of each
    """
    if delivered:
        txn.execute(
            "DELETE FROM synrepl._outgoing_messages m"
            " USING unnest(%s::text[], %s::bigint[]) AS d (destination, message_no)"
            " WHERE m.destination = d.destination AND m.message_no = d.message_no",
            (
                array_text([name for name, _ in delivered]),
                array_text([number for _, number in delivered]),
            ),
        )


def messages_by_number(
    txn: Transaction, destination: str, numbers: Collection[int]
) -> Sequence[OutgoingMessage]:
    """Messages of a destination that are not deleted."""
    txn.execute(
        "SELECT message_no, edu FROM synrepl._outgoing_messages"
        " WHERE destination = %s AND message_no = ANY (%s::bigint[]) ORDER BY message_no",
        (destination, array_text(list(numbers))),
    )
    return [OutgoingMessage(number, bytes(edu)) for number, edu in txn.fetchall()]


def persistent_edus(
    txn: Transaction, destinations: Collection[str], messages: int, pokes: int
) -> Mapping[str, PersistentEdus]:
    """What destinations are to get.

    :param messages: maximum number of messages of each
    :param pokes: maximum number of pokes of each
    """
    found: dict[str, PersistentEdus] = {each: PersistentEdus([], []) for each in destinations}
    names = array_text(list(destinations))
    txn.execute(
        "SELECT d, m.message_no, m.edu FROM unnest(%s::text[]) AS d CROSS JOIN LATERAL ("
        " SELECT message_no, edu FROM synrepl._outgoing_messages WHERE destination = d"
        " ORDER BY message_no LIMIT %s) AS m ORDER BY d, m.message_no",
        (names, messages),
    )
    for name, number, edu in txn.fetchall():
        _list(found[name].messages).append(OutgoingMessage(number, bytes(edu)))
    txn.execute(
        "SELECT d, p.user_id, p.stream_id FROM unnest(%s::text[]) AS d CROSS JOIN LATERAL ("
        " SELECT user_id, stream_id FROM synrepl._device_list_pokes WHERE destination = d"
        " ORDER BY stream_id, user_id LIMIT %s) AS p",
        (names, pokes),
    )
    for name, user_id, stream_id in txn.fetchall():
        _list(found[name].pokes).append(DeviceListPoke(user_id, stream_id))
    return found


def _list(values: Sequence[object]) -> list[object]:
    assert isinstance(values, list)
    return values


def destinations_with_edus(txn: Transaction) -> tuple[Sequence[str], Sequence[str]]:
    """The destinations with messages, and those with pokes."""
    return (
        _distinct(txn, "_outgoing_messages"),
        _distinct(txn, "_device_list_pokes"),
    )


def _distinct(txn: Transaction, table: str) -> Sequence[str]:
    """The destinations of a table: the first, and for each the next."""
    txn.execute(
        f"WITH RECURSIVE d AS ((SELECT destination FROM synrepl.{table} ORDER BY 1 LIMIT 1) UNION ALL"
        f" SELECT (SELECT t.destination FROM synrepl.{table} t WHERE t.destination > d.destination"
        "  ORDER BY 1 LIMIT 1) FROM d WHERE d.destination IS NOT NULL)"
        " SELECT destination FROM d WHERE destination IS NOT NULL"
    )
    return [str(name) for (name,) in txn.fetchall()]


def add_pokes(txn: Transaction, pokes: Collection[tuple[str, str, int]]) -> None:
    """Have destinations told that devices have changed.

    :param pokes: destination, user and stream ID of the change
    """
    rows = sorted(set(pokes))  # in one order, so that two transactions do not wait for each other
    if rows:
        txn.insert_many(
            "INSERT INTO synrepl._device_list_pokes (destination, user_id, stream_id) VALUES %s"
            " ON CONFLICT (destination, user_id) DO UPDATE"
            " SET stream_id = greatest(_device_list_pokes.stream_id, excluded.stream_id)",
            rows,
        )


def delete_pokes(txn: Transaction, told: Collection[tuple[str, DeviceListPoke]]) -> None:
    """Destinations were told; changes that came later stay.

    :param told: destination and what it was told
    """
    if told:
        txn.execute(
            "DELETE FROM synrepl._device_list_pokes p"
            " USING unnest(%s::text[], %s::text[], %s::bigint[]) AS t (destination, user_id, stream_id)"
            " WHERE p.destination = t.destination AND p.user_id = t.user_id"
            " AND p.stream_id = t.stream_id",
            (
                array_text([name for name, _ in told]),
                array_text([poke.user_id for _, poke in told]),
                array_text([poke.stream_id for _, poke in told]),
            ),
        )
