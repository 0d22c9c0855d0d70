"""Base classes of handlers that get the events of rooms: for bots, bridges, and tables of one's own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from synrepl.core.errors import ConfigError
from synrepl.services.handlers import Access, Batch, Handler, TransactionalHandler
from synrepl.services.rooms.store import RoomStore
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.reading.event_access import MAX_NAMED, EventCopy, read_events
from synrepl.streams.synapse.events import EVENTS, EventRow

_MEMBER = "m.room.member"


class RoomHandlerNeedsDatabase(ConfigError):
    """handler {handler!r} gets the events of rooms, which are in the database; configure 'database'"""


class RoomEvent(NamedTuple):
    """An event of a room.

    :ivar state_key: None for a message event
    :ivar content: in the redacted form if the event was redacted
    :ivar json: in federation format; likewise
    :ivar stream_id: its stream ordering
    """

    event_id: str
    room_id: str
    type: str
    state_key: str | None
    sender: str
    content: Mapping[str, Any]
    json: bytes
    stream_id: int

    @property
    def membership(self) -> tuple[str, str] | None:
        """The user whose membership it sets, and to what; None if it sets none."""
        membership = self.content.get("membership")
        if self.type != _MEMBER or self.state_key is None or not isinstance(membership, str):
            return None
        return self.state_key, membership


class RoomHandler(Handler):
    """Base class of handlers that get the events of rooms; override what you need.

    >>> from synrepl import RoomEvent, RoomHandler
    >>> class Greeter(RoomHandler):
    ...     async def on_membership(
    ...         self, room_id: str, user_id: str, membership: str, event: RoomEvent
    ...     ) -> None:
    ...         if membership == "join":
    ...             print("welcome,", user_id)

    It gets each event that was accepted when it came, in the order of the stream, at least once. History that
    comes later, and what was rejected, soft-failed or removed meanwhile, is left out. An override of :meth:`on_start`
    calls this one.

    :ivar rooms: the room store
    """

    streams = frozenset({EVENTS.name})

    rooms: RoomStore

    async def on_start(self, access: Access) -> None:
        """Open the room store.

        :raises RoomHandlerNeedsDatabase: the process has no database
        """
        if access.database is None:
            raise RoomHandlerNeedsDatabase(handler=type(self).__name__)
        self.rooms = RoomStore(access.database)

    async def on_rows(self, batch: Batch) -> None:
        """Read the events of a batch, and pass them on."""
        for ids in _pages(batch):
            for event in _in_order(ids, await self.rooms.events(ids)):
                await self.on_event(event)
                member = event.membership
                if member is not None:
                    await self.on_membership(event.room_id, *member, event)

    async def on_event(self, event: RoomEvent) -> None:
        """Handle an event, of any type."""

    async def on_membership(
        self, room_id: str, user_id: str, membership: str, event: RoomEvent
    ) -> None:
        """Handle a change of a membership, after :meth:`on_event` for the same event.

        :param membership: ``join``, ``leave``, ``invite``, ``ban`` or ``knock``
        """


class TransactionalRoomHandler(TransactionalHandler):
    """The same for handlers that write to the same database: each event is applied exactly once.

    >>> from synrepl import RoomEvent, Transaction, TransactionalRoomHandler
    >>> class Words(TransactionalRoomHandler):
    ...     def apply_event(self, txn: Transaction, event: RoomEvent) -> None:
    ...         words = len(str(event.content.get("body", "")).split())
    ...         txn.execute("INSERT INTO words VALUES (%s, %s)", (event.sender, words))
    """

    streams = frozenset({EVENTS.name})

    def apply(self, txn: Transaction, batch: Batch) -> None:
        """Read the events of a batch, and apply them."""
        for ids in _pages(batch):
            for event in _in_order(ids, read_events(txn, ids)):
                self.apply_event(txn, event)

    @abstractmethod
    def apply_event(self, txn: Transaction, event: RoomEvent) -> None:
        """Apply an event, using ``txn`` only; called in a thread of the database pool."""


def _pages(batch: Batch) -> Iterator[Sequence[str]]:
    """The IDs of a batch's events, as many at once as are read at once."""
    ids = [
        row.event_id
        for row in batch.rows
        if isinstance(row, EventRow) and not row.rejected and not row.outlier
    ]
    for at in range(0, len(ids), MAX_NAMED):
        yield ids[at : at + MAX_NAMED]


def _in_order(ids: Sequence[str], found: Mapping[str, EventCopy]) -> Iterator[RoomEvent]:
    for event_id in ids:
        copy = found.get(event_id)
        if copy is not None and copy.refusal is None and copy.stream_id is not None:
            yield _event(copy, copy.stream_id)


def _event(copy: EventCopy, stream_id: int) -> RoomEvent:
    return RoomEvent(
        copy.event_id,
        copy.room_id,
        copy.type,
        copy.state_key,
        copy.sender,
        _CONTENT(copy.json).content,
        copy.json,
        stream_id,
    )


class _WithContent(msgspec.Struct):
    content: dict[str, Any]


_CONTENT: Callable[[bytes], _WithContent] = msgspec.json.Decoder(_WithContent).decode
