"""Turns the facts that a process applies into changes of rooms and users."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from synrepl.core.tokens import Token
from synrepl.services.rooms.news.recent_changes import ChangeKind
from synrepl.services.rooms.news.sync_token import SYNC_STREAMS
from synrepl.storage.clients.values import PRIVATE_RECEIPT
from synrepl.streams.definition import Fact
from synrepl.streams.effects import Marks
from synrepl.streams.row import Row
from synrepl.streams.synapse.receipts import ReceiptRow

#: The changes of the index of each name that streams declare for their rows.
_KINDS = {
    ("events", "room_events"): ChangeKind.ROOM,
    ("events", "room_state"): ChangeKind.ROOM,
    ("events", "membership"): ChangeKind.MEMBERSHIP,
    ("typing", "typing"): ChangeKind.TYPING,
    ("account_data", "account_data"): ChangeKind.ACCOUNT_DATA,
    ("presence", "presence"): ChangeKind.PRESENCE,
    ("to_device", "to_device"): ChangeKind.TO_DEVICE,
}

_Extract = tuple[ChangeKind, Callable[[Any], Iterable[Any]]]


def _rooms_with_receipts(row: ReceiptRow) -> Iterable[str]:
    return () if row.receipt_type == PRIVATE_RECEIPT else (row.room_id,)


def _users_with_private_receipts(row: ReceiptRow) -> Iterable[str]:
    return (row.user_id,) if row.receipt_type == PRIVATE_RECEIPT else ()


#: Rows that change something else than their streams declare: a private receipt is news for its user alone.
_OWN_EXTRACTS: Mapping[type[Row], tuple[_Extract, ...]] = {
    ReceiptRow: (
        (ChangeKind.RECEIPTS, _rooms_with_receipts),
        (ChangeKind.PRIVATE_RECEIPTS, _users_with_private_receipts),
    )
}


class ChangeListener(Protocol):
    """Gets the changes that positions have passed."""

    def changed(self, kind: ChangeKind, writer: str, token: Token, entity: str | None) -> None:
        """An entity has changed at a writer's token; all entities if it is None."""

    def unknown_upto(self, stream: str, writer: str, token: Token) -> None:
        """Changes by a writer at or below ``token`` may be unknown."""


class NewsFeed:
    """Passes changes on when the position of their writer passes them, and not before.

    So whoever hears of a change, and then takes the positions of this process, can read it. It observes the
    facts of a :class:`~.coherence.Coherence`, and the moves of :class:`~.applied_vectors.AppliedVectors`.

    :param listeners: in the order in which they get each change
    """

    def __init__(self, listeners: Sequence[ChangeListener]) -> None:
        self._listeners = tuple(listeners)
        self._extracts: dict[str, dict[type[Row], tuple[_Extract, ...]]] = {}
        for stream in SYNC_STREAMS:
            self._extracts[stream.name] = {
                row: _OWN_EXTRACTS[row]
                if row in _OWN_EXTRACTS
                else tuple(
                    (_KINDS[stream.name, effect.index], effect.entities)
                    for effect in effects
                    if isinstance(effect, Marks)
                )
                for row, effects in stream.effects.items()
            }
        #: Facts above the position of their writer, in the order in which they came.
        self._waiting: dict[tuple[str, str], deque[Fact]] = {}

    def unknown_upto(self, stream: str, writer: str, token: Token) -> None:
        """Facts of a writer may be missing."""
        if stream in self._extracts:
            for listener in self._listeners:
                listener.unknown_upto(stream, writer, token)

    def applied(self, stream: str, writer: str, facts: Sequence[Fact]) -> None:
        """Keep facts until their position moves."""
        if stream in self._extracts:
            self._waiting.setdefault((stream, writer), deque()).extend(facts)

    def moved(self, stream: str, writer: str, position: Token) -> None:
        """Pass on the changes of a writer up to its position."""
        waiting = self._waiting.get((stream, writer))
        if not waiting:
            return
        extracts = self._extracts[stream]
        # Facts of this process's own transactions come in the order of their commits.
        for _ in range(len(waiting)):
            fact = waiting.popleft()
            if fact.token > position:
                waiting.append(fact)
                continue
            for row in fact.rows:
                self._pass_on(extracts.get(type(row), ()), writer, fact.token, row)

    def _pass_on(self, extracts: Iterable[_Extract], writer: str, token: Token, row: Row) -> None:
        for kind, entities in extracts:
            for entity in entities(row):
                for listener in self._listeners:
                    listener.changed(kind, writer, token, entity)
