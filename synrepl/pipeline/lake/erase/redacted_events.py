"""Sets of redacted events that take 16 bytes for each, or a few times that, in the driver and in each task."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from synrepl.pipeline.source.database.whole_events import RedactedRow, RoomEvent

_DIGEST_BYTES = 16
_DIGESTS = np.dtype(f"S{_DIGEST_BYTES}")

#: Number of events of which digests are computed at a time.
AT_ONCE = 65_536


class RedactedEvents:
    """Redacted events, as sorted digests. It can be pickled for tasks.

    The room of an event is "" if it is not known, which matches any room.

    Digests of 16 bytes do not collide in practice; if two did, one cell too many would be emptied.

    :param digests: results of :func:`digests_of`, in any order
    :param any_roomless: an event is of a room that is not known
    """

    def __init__(self, digests: Any = (), any_roomless: bool = False) -> None:
        # NumPy ignores zeros at the end of bytes. All digests have the same length, so none is
        # taken for another.
        self._digests = np.unique(np.asarray(digests, _DIGESTS))
        self._any_roomless = any_roomless

    @classmethod
    def of(cls, events: Iterable[RoomEvent]) -> RedactedEvents:
        """The set of some events."""
        waiting, parts, any_roomless = iter(events), [], False
        while some := list(islice(waiting, AT_ONCE)):
            parts.append(digests_of(*zip(*some, strict=True)))
            any_roomless = any_roomless or any(not room for room, _ in some)
        return cls(np.concatenate(parts) if parts else (), any_roomless)

    def __len__(self) -> int:
        return len(self._digests)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RedactedEvents):
            return NotImplemented
        return np.array_equal(self._digests, other._digests)

    __hash__ = None  # type: ignore[assignment]

    def __or__(self, other: RedactedEvents) -> RedactedEvents:
        both = np.concatenate([self._digests, other._digests])
        return RedactedEvents(both, self._any_roomless or other._any_roomless)

    def contain(self, rooms: Sequence[str | None], events: Sequence[str | None]) -> Any:
        """Which of some events are in the set, as an array of booleans."""
        found = self._contain(digests_of(rooms, events))
        if self._any_roomless:
            found |= self._contain(digests_of([None] * len(events), events))
        return found & np.array([event is not None for event in events], bool)

    def _contain(self, digests: Any) -> Any:
        if not len(self._digests):
            return np.zeros(len(digests), bool)
        at = np.searchsorted(self._digests, digests)
        return self._digests[np.minimum(at, len(self._digests) - 1)] == digests


_NO_TIMES = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class AppliedRedactions:
    """The whole events to which redactions apply: 40 bytes for each. It can be pickled for tasks.

    :ivar events: the events
    :ivar ids: the same without their rooms, for rows whose room has been erased
    :ivar times: their ``origin_server_ts``, in ascending order; None if some are not known
    """

    events: RedactedEvents = field(default_factory=RedactedEvents)
    ids: RedactedEvents = field(default_factory=RedactedEvents)
    times: Any = field(default_factory=_NO_TIMES.copy)

    @classmethod
    def of(cls, rows: Iterable[RedactedRow]) -> AppliedRedactions:
        """The set of some rows; only digests of them are kept."""
        waiting, parts = iter(rows), [(np.empty(0, _DIGESTS), np.empty(0, _DIGESTS), _NO_TIMES)]
        are_known = True
        while some := list(islice(waiting, AT_ONCE)):
            rooms, events, times = zip(*some, strict=True)
            known = [at for at in times if at is not None]
            are_known = are_known and len(known) == len(times)
            parts.append(
                (
                    digests_of(rooms, events),
                    digests_of([None] * len(events), events),
                    np.unique(np.array(known, np.int64)),
                )
            )
        of_rooms, of_ids, all_times = map(np.concatenate, zip(*parts, strict=True))
        return cls(
            RedactedEvents(of_rooms),
            RedactedEvents(of_ids),
            np.unique(all_times) if are_known else None,
        )

    def __len__(self) -> int:
        return len(self.events)

    def __or__(self, other: AppliedRedactions) -> AppliedRedactions:
        times = None
        if self.times is not None and other.times is not None:
            times = np.union1d(self.times, other.times)
        return AppliedRedactions(self.events | other.events, self.ids | other.ids, times)

    def contain(self, rooms: Sequence[str | None], events: Sequence[str | None]) -> Any:
        """Which of some events are in the set, as an array of booleans; a room that is None is not known."""
        found = self.events.contain(rooms, events)
        unknown = np.array([room is None for room in rooms], bool)
        if unknown.any():
            found |= unknown & self.ids.contain([None] * len(events), events)
        return found

    def without_times(self) -> AppliedRedactions:
        """The same for tasks, which do not choose files."""
        return replace(self, times=None)


NONE_APPLIED = AppliedRedactions()


def digests_of(rooms: Iterable[str | None], events: Iterable[str | None]) -> Any:
    """The digests of some events, as an array."""
    # With the length of the first part, so that no other pair has the same text.
    pairs = ((room or "", event) for room, event in zip(rooms, events, strict=True))
    made = (
        hashlib.blake2b(f"{len(room)} {room}{event}".encode(), digest_size=_DIGEST_BYTES).digest()
        for room, event in pairs
    )
    return np.frombuffer(b"".join(made), _DIGESTS)
