"""A user who reads a room, with what was read of the user's history there, so that it is read once for several pages."""

from __future__ import annotations

from synrepl.rooms import EventOrdering, Viewer
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.numbers import RoomRow, require_room
from synrepl.storage.rooms.visibility.viewers import (
    END,
    START,
    HistoryPart,
    ViewerHistory,
    ViewerSlots,
    history_part,
    slots_of_viewer,
    viewer_history,
)


class RoomViewer:
    """A user in a room, in one transaction.

    :param slots: those of the user's membership and of the history visibility
    :param newest: what the user was in the room most recently; None: it is read when it is needed
    :ivar may_have_branches: False: it is known that no event of the room is beside its main line
    """

    def __init__(
        self,
        txn: Transaction,
        room: RoomRow,
        viewer: Viewer,
        slots: ViewerSlots,
        *,
        may_have_branches: bool = True,
        newest: HistoryPart | None = None,
    ) -> None:
        self.txn = txn
        self.room = room
        self.viewer = viewer
        self.may_have_branches = may_have_branches
        self._slots = slots
        self._newest = newest

    @classmethod
    def find(cls, txn: Transaction, room_id: str, viewer: Viewer) -> RoomViewer:
        """A user in a room.

        :raises UnknownRoom: it is not in the store
        """
        room = require_room(txn, room_id)
        return cls(txn, room, viewer, slots_of_viewer(txn, room, viewer.user))

    def part(self, edge: EventOrdering, *, backwards: bool, by_stream: bool) -> HistoryPart:
        """What the user was in the room shortly before an ordering, or from it on; see :func:`.history_part`.

        Most users have few versions of their membership, so that the newest ones are all there are.
        """
        newest = self._read_newest()
        is_end = edge.stream >= END.stream if by_stream else edge >= END
        if _is_whole(newest) or (is_end and backwards):
            return newest
        return history_part(
            self.txn, self.room, self._slots, edge, backwards=backwards, by_stream=by_stream
        )

    def history(self) -> ViewerHistory:
        """What the user was in the room when."""
        newest = self._read_newest()
        if _is_whole(newest):
            return newest.history
        return viewer_history(self.txn, self.room, self._slots)

    def _read_newest(self) -> HistoryPart:
        if self._newest is None:
            self._newest = history_part(
                self.txn, self.room, self._slots, END, backwards=True, by_stream=False
            )
        return self._newest


def _is_whole(part: HistoryPart) -> bool:
    return part.low == START and part.high == END
