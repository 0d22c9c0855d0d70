"""Devices that messages can be sent to: those that have synced lately."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.pending_rows import array_text

#: Maximum number of devices of a user. Beyond it, those that synced longest ago are forgotten.
MAX_DEVICES = 200


class Device(NamedTuple):
    """A device of a user of this server."""

    user_id: str
    device_id: str


def record_devices(txn: Transaction, devices: Collection[Device]) -> None:
    """Remember that devices have synced now."""
    # In one order, so that two transactions do not wait for each other.
    users, ids = zip(*sorted(set(devices)), strict=True)
    txn.execute(
        "INSERT INTO synrepl._client_devices (user_id, device_id)"
        " SELECT * FROM unnest(%s::text[], %s::text[])"
        " ON CONFLICT (user_id, device_id) DO UPDATE SET seen_at = now()"
        " RETURNING user_id, xmax = 0",
        (array_text(users), array_text(ids)),
    )
    users_with_more = sorted({str(user_id) for user_id, is_new in txn.fetchall() if is_new})
    if not users_with_more:
        return
    txn.execute(
        "SELECT d.user_id, d.device_id FROM (SELECT user_id, device_id, row_number() OVER"
        " (PARTITION BY user_id ORDER BY seen_at DESC) AS place FROM synrepl._client_devices"
        " WHERE user_id = ANY (%s::text[])) AS d WHERE d.place > %s",
        (array_text(users_with_more), MAX_DEVICES),
    )
    for each in [Device._make(row) for row in txn.fetchall()]:
        forget_device(txn, each)


def devices_of(txn: Transaction, users: Collection[str]) -> dict[str, set[str]]:
    """The devices of users; users without any are left out."""
    txn.execute(
        "SELECT user_id, device_id FROM synrepl._client_devices WHERE user_id = ANY (%s::text[])",
        (array_text(users),),
    )
    found: dict[str, set[str]] = {}
    for user_id, device_id in txn.fetchall():
        found.setdefault(str(user_id), set()).add(str(device_id))
    return found


def forget_device(txn: Transaction, device: Device) -> None:
    """Forget a device, and the messages to it."""
    for table in ("_client_devices", "_to_device"):
        txn.execute(f"DELETE FROM synrepl.{table} WHERE user_id = %s AND device_id = %s", device)


def old_devices(txn: Transaction, older_than_s: float, at_most: int) -> Sequence[Device]:
    """Devices that have not synced for some time."""
    txn.execute(
        "SELECT user_id, device_id FROM synrepl._client_devices"
        " WHERE seen_at < now() - make_interval(secs => %s) ORDER BY seen_at LIMIT %s",
        (older_than_s, at_most),
    )
    return [Device._make(row) for row in txn.fetchall()]


def forget_old_devices(txn: Transaction, older_than_s: float, at_most: int) -> int:
    """Forget devices that have not synced for some time, up to a number; returns it."""
    found = old_devices(txn, older_than_s, at_most)
    for each in found:
        forget_device(txn, each)
    return len(found)
