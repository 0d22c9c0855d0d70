"""Which rooms an update is about, and what is read of each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from synrepl.positions.vector import PositionVector
from synrepl.storage.rooms.timelines.user_rooms import UserRoom


class RoomsToRead(NamedTuple):
    """The rooms of an update.

    :ivar upto: the update is as of this vector
    :ivar changed: rooms that the user was in all the time
    :ivar new: rooms that are read from their beginning, with their whole state
    :ivar whole: those of both whose state is wanted whole
    :ivar left: rooms that the user left
    :ivar left_since: those of them, by number, that the user was in before
    :ivar never_joined: those of ``left`` that the user was never in, by number
    :ivar purged: rooms, by number, with purged events that the client may have missed
    """

    upto: PositionVector
    changed: Sequence[UserRoom] = ()
    new: Sequence[UserRoom] = ()
    whole: Collection[int] = ()
    left: Sequence[UserRoom] = ()
    left_since: Collection[int] = ()
    never_joined: Collection[int] = ()
    purged: Collection[int] = ()
    invited: Sequence[UserRoom] = ()
    knocked: Sequence[UserRoom] = ()

    def parts(self, most: int) -> list[RoomsToRead]:
        """The same in parts of up to ``most`` new and as many changed rooms; all others are in the first."""
        starts = range(0, max(len(self.new), len(self.changed), 1), most)
        parts = [
            RoomsToRead(
                self.upto,
                changed=self.changed[start : start + most],
                new=self.new[start : start + most],
                whole=self.whole,
                purged=self.purged,
            )
            for start in starts
        ]
        parts[0] = self._replace(changed=parts[0].changed, new=parts[0].new)
        return parts
