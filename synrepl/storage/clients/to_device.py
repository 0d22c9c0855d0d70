"""Messages to devices, in tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from synrepl.core import jsons
from synrepl.core.tokens import Token
from synrepl.positions.vector import PositionVector
from synrepl.storage.clients.devices import Device, devices_of
from synrepl.storage.clients.vector_sql import covered, vector_params
from synrepl.storage.clients.written_values import StoredFact, append_with
from synrepl.storage.database import Transaction
from synrepl.storage.federation.outgoing_messages import add_messages
from synrepl.storage.outbox import Outbox
from synrepl.storage.rooms.tables.pending_rows import array_text
from synrepl.streams.synapse.to_device import TO_DEVICE, ToDeviceRow

#: Maximum number of messages that wait for one device. Beyond it, the oldest goes.
MAX_WAITING_MESSAGES = 10_000

#: Stands for all devices of a user.
ALL_DEVICES = "*"


class NewMessages(NamedTuple):
    """Messages that a user sends to devices.

    :ivar kind: their type
    :ivar contents: by user of this server, and by device or :data:`ALL_DEVICES`
    :ivar outgoing: other servers, with EDUs of messages to their users
    :ivar request: what identifies the request, of which a second one sends nothing
    """

    sender: str
    kind: str
    contents: Mapping[str, Mapping[str, Any]]
    outgoing: Sequence[tuple[str, bytes]]
    request: bytes


def write_messages(
    txn: Transaction,
    outbox: Outbox,
    writer: str,
    new: NewMessages,
    dropped: Callable[[int], object],
) -> StoredFact | None:
    """Write messages to devices that are known, and to other servers, with one fact for all; others go nowhere.

    :param writer: this process
    :param dropped: gets the number of older messages that went because too many wait for a device or server
    :returns: the fact of the first request, if this repeats it
    """
    txn.execute(
        "INSERT INTO synrepl._to_device_requests (request) VALUES (%s) ON CONFLICT DO NOTHING",
        (new.request,),
    )
    if not txn.rowcount:
        return _sent_before(txn, new.request)
    known = devices_of(txn, new.contents.keys())
    messages = [
        (Device(user_id, device_id), content)
        for user_id, contents in new.contents.items()
        for name, content in contents.items()
        for device_id in _named(name, known.get(user_id, set()))
    ]
    entities = {device.user_id for device, _ in messages} | {server for server, _ in new.outgoing}
    if not entities:
        return None
    rows = [ToDeviceRow(entity) for entity in sorted(entities)]
    encoded = [_encoded(new, content) for _, content in messages]

    def write(txn: Transaction, token: Token) -> None:
        txn.execute(
            "INSERT INTO synrepl._to_device (user_id, device_id, message, place, stream_id, writer)"
            " SELECT user_id, device_id, message, place, %s, %s"
            " FROM unnest(%s::text[], %s::text[], %s::bytea[]) WITH ORDINALITY"
            " AS m (user_id, device_id, message, place)",
            (
                token,
                writer,
                array_text([device.user_id for device, _ in messages]),
                array_text([device.device_id for device, _ in messages]),
                array_text(encoded),
            ),
        )
        txn.execute(
            "UPDATE synrepl._to_device_requests SET stream_id = %s, writer = %s WHERE request = %s",
            (token, writer, new.request),
        )

    dropped(_drop_oldest(txn, {device for device, _ in messages}) + add_messages(txn, new.outgoing))
    append_with(outbox, TO_DEVICE, rows, write)
    return None


def _sent_before(txn: Transaction, request: bytes) -> StoredFact | None:
    txn.execute(
        "SELECT writer, stream_id FROM synrepl._to_device_requests"
        " WHERE request = %s AND stream_id IS NOT NULL",
        (request,),
    )
    found = txn.fetchone_or_none()
    return None if found is None else StoredFact(*found)


def _named(name: str, known: set[str]) -> Sequence[str]:
    if name == ALL_DEVICES:
        return sorted(known)
    return [name] if name in known else []


def _encoded(new: NewMessages, content: Any) -> str:
    """A message, as PostgreSQL reads bytes."""
    message = jsons.canonical({"type": new.kind, "sender": new.sender, "content": content})
    return rf"\x{message.hex()}"


def _drop_oldest(txn: Transaction, devices: Collection[Device]) -> int:
    """Make place for one more message to each device; the number of messages that went."""
    ordered = sorted(devices)
    txn.execute(
        "DELETE FROM synrepl._to_device t USING (SELECT d.user_id, d.device_id, (SELECT x.stream_id"
        " FROM synrepl._to_device x WHERE x.user_id = d.user_id AND x.device_id = d.device_id"
        " ORDER BY x.stream_id DESC OFFSET %s LIMIT 1) AS last"
        " FROM unnest(%s::text[], %s::text[]) AS d (user_id, device_id)) AS f"
        " WHERE t.user_id = f.user_id AND t.device_id = f.device_id AND t.stream_id <= f.last",
        (
            MAX_WAITING_MESSAGES - 1,
            array_text([each.user_id for each in ordered]),
            array_text([each.device_id for each in ordered]),
        ),
    )
    return txn.rowcount


def acknowledge_messages(txn: Transaction, device: Device, upto: PositionVector) -> None:
    """Delete the messages to a device that a vector covers."""
    txn.execute(
        "DELETE FROM synrepl._to_device t WHERE t.user_id = %(user)s AND t.device_id = %(device)s"
        f" AND {covered(upto, 'upto')}",
        {"user": device.user_id, "device": device.device_id, **vector_params(upto, "upto")},
    )


def forget_requests(txn: Transaction, older_than_s: float, at_most: int) -> int:
    """Delete old records of requests, up to ``at_most``; returns their number."""
    txn.execute(
        "DELETE FROM synrepl._to_device_requests WHERE ctid = ANY (ARRAY("
        "SELECT ctid FROM synrepl._to_device_requests"
        " WHERE sent_at < now() - make_interval(secs => %s) LIMIT %s))",
        (older_than_s, at_most),
    )
    return txn.rowcount
