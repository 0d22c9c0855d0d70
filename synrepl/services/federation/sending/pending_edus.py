"""EDUs that wait for a transaction to a destination, and that nobody keeps: typing, receipts, presence."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from synrepl.federation.outgoing_edus import (
    SentPresence,
    SentReceipt,
    presence_edu,
    receipts_edu,
)

#: Maximum numbers of what waits for one destination. Beyond them, the oldest goes.
MAX_KEYED, MAX_PLAIN, MAX_PRESENCES, MAX_RECEIPTS = 500, 200, 1_000, 1_000

#: Users in one EDU about presence, and receipts in one about receipts.
_PRESENCES_IN_EDU, _RECEIPTS_IN_EDU = 100, 200

#: Of EDUs with one key, only the last one is sent.
EduKey = tuple[str, ...]


class PendingEdus:
    """EDUs of one destination, of which later ones take the place of earlier ones that they make void.

    :ivar dropped: number of those that were dropped because there were too many
    """

    __slots__ = ("_keyed", "_plain", "_presences", "_receipts", "dropped")

    def __init__(self) -> None:
        self._keyed: dict[EduKey, bytes] = {}
        self._plain: deque[bytes] = deque()
        self._presences: dict[str, SentPresence] = {}
        #: By room, user and thread.
        self._receipts: dict[tuple[str, str, str | None], SentReceipt] = {}
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._keyed) + len(self._plain) + len(self._presences) + len(self._receipts)

    def put(self, edu: bytes, key: EduKey | None = None) -> None:
        """Add an EDU.

        :param key: what it is about; None: no other EDU makes it void
        """
        if key is not None:
            self._keyed.pop(key, None)
            self._keyed[key] = edu
            self._trim(self._keyed, MAX_KEYED)
            return
        self._plain.append(edu)
        if len(self._plain) > MAX_PLAIN:
            self._plain.popleft()
            self.dropped += 1

    def put_presence(self, presence: SentPresence) -> None:
        """Add the presence of a user."""
        self._presences.pop(presence.user_id, None)
        self._presences[presence.user_id] = presence
        self._trim(self._presences, MAX_PRESENCES)

    def put_receipt(self, room_id: str, receipt: SentReceipt) -> None:
        """Add a receipt."""
        key = room_id, receipt.user_id, receipt.thread_id
        self._receipts.pop(key, None)
        self._receipts[key] = receipt
        self._trim(self._receipts, MAX_RECEIPTS)

    def take(self, most: int, now_ms: int) -> Sequence[bytes]:
        """Remove and return EDUs, at most ``most``."""
        taken: list[bytes] = []
        while self._plain and len(taken) < most:
            taken.append(self._plain.popleft())
        while self._keyed and len(taken) < most:
            taken.append(self._keyed.pop(next(iter(self._keyed))))
        while self._presences and len(taken) < most:
            names = list(self._presences)[:_PRESENCES_IN_EDU]
            taken.append(presence_edu([self._presences.pop(name) for name in names], now_ms))
        while self._receipts and len(taken) < most:
            taken.append(self._receipts_edu())
        return taken

    def _receipts_edu(self) -> bytes:
        """The oldest receipts. An EDU has one receipt of a user in a room: those of other threads wait."""
        rooms: dict[str, dict[str, SentReceipt]] = {}
        count = 0
        for room_id, user_id, thread_id in list(self._receipts):
            users = rooms.setdefault(room_id, {})
            if user_id in users:
                continue
            users[user_id] = self._receipts.pop((room_id, user_id, thread_id))
            count += 1
            if count == _RECEIPTS_IN_EDU:
                break
        return receipts_edu({room_id: users.values() for room_id, users in rooms.items()})

    def _trim(
        self,
        values: dict[EduKey, bytes]
        | dict[str, SentPresence]
        | dict[tuple[str, str, str | None], SentReceipt],
        most: int,
    ) -> None:
        if len(values) > most:
            del values[next(iter(values))]  # type: ignore[arg-type]
            self.dropped += 1
