"""Appends that wait for one stream's next transaction."""

from __future__ import annotations

from collections import deque

from synrepl.core.clock import Promise
from synrepl.storage.store import AppendResult, Draft
from synrepl.streams.definition import Stream

#: Appends that wait while one commits go together in the next transaction, up
#: to this many rows.
GROUP_ROWS = 5_000


class PendingAppend:
    """A draft, and the promise of its answer."""

    __slots__ = ("draft", "promise", "rows")

    def __init__(self, draft: Draft, rows: int, promise: Promise[AppendResult]) -> None:
        self.draft = draft
        self.rows = rows
        self.promise = promise


class AppendQueue:
    """Drafts that wait for one stream's next transaction."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.rows = 0
        self.busy = False
        self._drafts: deque[PendingAppend] = deque()

    def put(self, waiting: PendingAppend) -> None:
        self._drafts.append(waiting)
        self.rows += waiting.rows

    def take(self) -> list[PendingAppend]:
        """The next group: bounded, and no idempotency key in it twice."""
        group: list[PendingAppend] = []
        keys: set[str] = set()
        rows = 0
        while self._drafts:
            waiting = self._drafts[0]
            if group and (rows + waiting.rows > GROUP_ROWS or waiting.draft.key in keys):
                break
            group.append(self._drafts.popleft())
            rows += waiting.rows
            self.rows -= waiting.rows
            if waiting.draft.key is not None:
                keys.add(waiting.draft.key)
        return group
