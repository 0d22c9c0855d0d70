"""The commands of the protocol, one class each.

The classes describe the meaning of each command. Its arguments per dialect, and the
side that may send it, are in the table of :mod:`synrepl.wire.dialects`. The formats
below are the modern ones. An attribute is optional if some dialect lacks it.

Source: "TCP replication, Synapse 1.43", 'List of commands'; recordings of real
servers for what that list does not name.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

#: A component of a cache key.
Key = str | int | float | bool | None


class Command(msgspec.Struct, frozen=True, gc=False):
    """Base class of all commands: immutable, compared by value, and cheap."""

    #: The first word of the line.
    verb: ClassVar[str] = ""


class Server(Command, frozen=True, gc=False):
    """The name of the server; the first line of the listening side.

    Format: ``SERVER <name>``. Example: ``SERVER example.com``.
    """

    verb = "SERVER"
    name: str


class Rdata(Command, frozen=True, gc=False):
    """One row of a stream.

    Format: ``RDATA <stream> <writer> <token> <row>``. All rows of one fact but
    the last have ``batch`` in place of the token (``token`` is ``None`` then), and the
    reader's position moves with the last one only.

    ``row`` is the JSON as it was sent; it is decoded by the stream's row codec.

    Example: ``RDATA caches master 54 ["get_user_by_id",["@a:b"],1490197670513]``.
    """

    verb = "RDATA"
    stream: str
    writer: str | None
    token: int | None
    row: bytes


class Position(Command, frozen=True, gc=False):
    """A writer has reached a token; a follower that is below ``prev`` missed something.

    Format: ``POSITION <stream> <writer> <prev> <new>``. ``prev`` is the last
    token sent for this writer. Example: ``POSITION events master 53 54``.
    """

    verb = "POSITION"
    stream: str
    writer: str | None
    prev: int | None
    new: int


class Error(Command, frozen=True, gc=False):
    """An error, after which the sender closes the connection.

    Format: ``ERROR <text>``. Example: ``ERROR ping timeout``.
    """

    verb = "ERROR"
    text: str


class Ping(Command, frozen=True, gc=False):
    """Keep-alive. The first PING arms the other side's time-out.

    Format: ``PING <ms since the epoch>``; real servers take any text, or none.
    Example: ``PING 1490197665618``.
    """

    verb = "PING"
    text: str


class Name(Command, frozen=True, gc=False):
    """The client's name for logs; the first line of the connecting side.

    Format: ``NAME <text>``. Example: ``NAME worker1``.
    """

    verb = "NAME"
    text: str


class Replicate(Command, frozen=True, gc=False):
    """Request data.

    Format: ``REPLICATE`` requests the positions of all streams. The legacy
    ``REPLICATE <stream> <token>`` requests one stream (or ``ALL``) from a
    token, which may be negative, or from ``NOW`` (``token`` is ``None``).

    Examples: ``REPLICATE``, ``REPLICATE events 53``, ``REPLICATE ALL NOW``.
    """

    verb = "REPLICATE"
    stream: str | None = None
    token: int | None = None


class UserSync(Command, frozen=True, gc=False):
    """A user has started or stopped syncing at a worker.

    Format: ``USER_SYNC <instance> <user> start|end <last sync in ms>``; the
    current dialect puts the device, or ``None``, after the user.
    Example: ``USER_SYNC sgSWK @a:b start 1795168397233``.
    """

    verb = "USER_SYNC"
    instance: str | None
    user: str
    device: str | None
    syncing: bool
    last_sync_ms: int


class ClearUserSync(Command, frozen=True, gc=False):
    """Forget all syncing users of a worker that is shutting down.

    Format: ``CLEAR_USER_SYNC <instance>``. Example: ``CLEAR_USER_SYNC sgSWK``.
    """

    verb = "CLEAR_USER_SYNC"
    instance: str


class FederationAck(Command, frozen=True, gc=False):
    """A federation sender has processed the ``federation`` stream up to a token.

    Format: ``FEDERATION_ACK <instance> <token>``.
    Example: ``FEDERATION_ACK federation_sender1 12``.
    """

    verb = "FEDERATION_ACK"
    instance: str | None
    token: int


class RemovePusher(Command, frozen=True, gc=False):
    """A push gateway has rejected a pusher: delete it.

    Format: ``REMOVE_PUSHER <app ID> <push key> <user>``.
    Example: ``REMOVE_PUSHER org.example.app k1 @a:b``.
    """

    verb = "REMOVE_PUSHER"
    app_id: str
    push_key: str
    user: str


class InvalidateCache(Command, frozen=True, gc=False):
    """A worker requests that a cache entry is invalidated everywhere.

    Format: ``INVALIDATE_CACHE <cache> <JSON array of keys>``.
    Example: ``INVALIDATE_CACHE get_user_by_id ["@a:b"]``.
    """

    verb = "INVALIDATE_CACHE"
    cache: str
    keys: tuple[Key, ...]


class UserIp(Command, frozen=True, gc=False):
    """A user was active from an IP address.

    Format: ``USER_IP <user> [access token, IP, user agent, device, last seen in ms]``.
    Example: ``USER_IP @a:b ["syt_1","127.0.0.1","curl","DEVICE",1795169254975]``.
    """

    verb = "USER_IP"
    user: str
    access_token: str
    ip: str
    user_agent: str
    device: str | None
    last_seen_ms: int


class Sync(Command, frozen=True, gc=False):
    """A marker in the data, for tests.

    Format: ``SYNC <text>``. Example: ``SYNC 12``.
    """

    verb = "SYNC"
    text: str


class RemoteServerUp(Command, frozen=True, gc=False):
    """A remote server may be back. A master relays it to all its other workers.

    Format: ``REMOTE_SERVER_UP <server>``. Example: ``REMOTE_SERVER_UP example.org``.
    """

    verb = "REMOTE_SERVER_UP"
    server: str


class LockReleased(Command, frozen=True, gc=False):
    """A lock was released.

    Format: ``LOCK_RELEASED ["<instance>","<lock>","<key>"]``.
    Example: ``LOCK_RELEASED ["persister1","update_join_states_lock","@a:b"]``.
    """

    verb = "LOCK_RELEASED"
    instance: str
    lock: str
    key: str


class NewActiveTask(Command, frozen=True, gc=False):
    """A scheduled task may be started.

    Format: ``NEW_ACTIVE_TASK <task>``. Example: ``NEW_ACTIVE_TASK heoiSUwbrQDKHckF``.
    """

    verb = "NEW_ACTIVE_TASK"
    task: str


class CancelTask(Command, frozen=True, gc=False):
    """A task is to be stopped.

    Format: ``CANCEL_TASK <task>``. Example: ``CANCEL_TASK heoiSUwbrQDKHckF``.
    """

    verb = "CANCEL_TASK"
    task: str
