"""The line of a room: its states in a sequence, in which neighbours differ little, as versions of slots.

A group whose state follows the newest on the line is put onto it, at the next position. Branches stay off
the line. When many groups have not followed it, the line goes on with another branch. A backfilled stretch
goes before the oldest position. The oldest version of a slot holds from :data:`ALWAYS` on, so putting a
stretch before them touches only the slots that the stretch changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.room_shapes.histories import History, HistoryGroup

#: Before every position.
ALWAYS = -(2**31)

#: Groups that did not follow the line before it goes on with another branch.
PATIENCE = 64


class Version(NamedTuple):
    """A slot's entry from a position on; None if it has none."""

    slot: int
    pos: int
    event_no: int | None


class Placed(NamedTuple):
    """The outcome of storing some groups.

    :ivar positions: of the groups that are on the line
    :ivar versions: new versions, in order
    :ivar unset: slots whose oldest version is replaced: delete it before ``versions`` are written
    """

    positions: dict[int, int]
    versions: list[Version]
    unset: list[int]


class RoomLine:
    """The line of a room, as its writer knows it.

    :ivar newest: the group at its end
    """

    def __init__(self) -> None:
        self.newest: int | None = None
        self._end = 0
        self._oldest: int | None = None
        self._begin = 0
        self._passed = 0

    def place(self, groups: Sequence[HistoryGroup], history: History) -> Placed:
        """Put groups onto the line as far as they fit; a stretch comes in one call."""
        if groups and groups[0].is_earlier:
            return self._place_before(groups, history)
        placed = Placed({}, [], [])
        for group in groups:
            change = self._change(group, history)
            if change is None:
                self._passed += 1
                continue
            is_first = self.newest is None
            self._end += not is_first
            self._passed = 0
            self.newest = group.number
            self._oldest = group.number if self._oldest is None else self._oldest
            placed.positions[group.number] = self._end
            pos = ALWAYS if is_first else self._end
            placed.versions.extend(Version(slot, pos, event) for slot, event in change.items())
        return placed

    def _change(self, group: HistoryGroup, history: History) -> dict[int, int | None] | None:
        """From the end of the line to a group; None if it stays off the line."""
        if self.newest is None or group.parents[:1] == (self.newest,):
            return dict(group.change)
        if self.newest in group.parents:
            return history.change(self.newest, group.number)
        if self._passed and self._passed % PATIENCE == 0:
            change = history.change(self.newest, group.number)
            if len(change) <= self._passed:
                return change
        return None

    def _place_before(self, groups: Sequence[HistoryGroup], history: History) -> Placed:
        assert self._oldest is not None
        start = groups[0]
        begin = self._begin - len(groups)
        placed = Placed({g.number: begin + nth for nth, g in enumerate(groups)}, [], [])
        later: list[Version] = []
        for group in groups[1:]:
            pos = placed.positions[group.number]
            later += [Version(slot, pos, event) for slot, event in group.change.items()]
        gap = history.change(groups[-1].number, self._oldest)
        later += [Version(slot, self._begin, event) for slot, event in gap.items()]
        touched = {version.slot for version in later} | start.change.keys()
        before = history.state(start.number)
        placed.unset.extend(sorted(touched))
        placed.versions.extend(
            Version(slot, ALWAYS, before[slot]) for slot in placed.unset if slot in before
        )
        placed.versions.extend(later)
        self._begin, self._oldest = begin, start.number
        return placed
