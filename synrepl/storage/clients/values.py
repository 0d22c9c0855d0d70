"""Current values that clients are told besides the events of rooms."""

from __future__ import annotations

from typing import NamedTuple

#: A receipt that only its own user is told of.
PRIVATE_RECEIPT = "m.read.private"


class AccountData(NamedTuple):
    """Account data of a user.

    :ivar room_id: None for data that belongs to no room
    :ivar content: JSON
    """

    room_id: str | None
    type: str
    content: bytes
    stream_id: int


class Receipt(NamedTuple):
    """How far a user has read.

    :ivar thread_id: the thread that it is about; None for a receipt that belongs to no thread
    :ivar ts: milliseconds since 1970
    """

    room_id: str
    receipt_type: str
    user_id: str
    event_id: str
    thread_id: str | None
    ts: int
    stream_id: int


class Presence(NamedTuple):
    """The presence of a user.

    :ivar state: ``online``, ``unavailable`` or ``offline``
    :ivar last_active_ts: milliseconds since 1970; 0: never
    """

    user_id: str
    state: str
    status_msg: str | None
    last_active_ts: int
    currently_active: bool
    stream_id: int = 0


class DeviceMessage(NamedTuple):
    """A message to a device.

    :ivar message: JSON with ``type``, ``sender`` and ``content``
    """

    message: bytes
    stream_id: int
