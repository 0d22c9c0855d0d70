"""Sets of redacted events, of which a process holds a limited number, whatever their size."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from synrepl.pipeline.lake.erase.digest_runs import (
    DIGEST_BYTES,
    DIGESTS,
    DigestRun,
    merged,
    write_run,
)
from synrepl.pipeline.lake.storage import LakePath
from synrepl.pipeline.source.database.whole_events import RedactedRow, RoomEvent

#: Number of events of which digests are computed at a time.
AT_ONCE = 65_536

#: Maximum number of events of a set that are held in memory: 4 MiB.
MOST_HELD = 1 << 18


class RedactedEvents:
    """Redacted events, as sorted digests in memory and in files. It can be pickled for tasks, which have to reach the files.

    The room of an event is "" if it is not known, which matches any room.

    Digests of 16 bytes do not collide in practice; if two did, one cell too many would be emptied.

    :param held: results of :func:`digests_of`, in any order
    :param runs: of such
    :param any_roomless: an event is of a room that is not known
    """

    def __init__(
        self, held: Any = (), any_roomless: bool = False, runs: Sequence[DigestRun] = ()
    ) -> None:
        # NumPy ignores zeros at the end of bytes. All digests have the same length, so none is
        # taken for another.
        self.held = np.unique(np.asarray(held, DIGESTS))
        self.runs = tuple(runs)
        self.any_roomless = any_roomless

    @classmethod
    def of(cls, events: Iterable[RoomEvent]) -> RedactedEvents:
        """The set of some events, in memory."""
        waiting, parts, any_roomless = iter(events), [], False
        while some := list(islice(waiting, AT_ONCE)):
            parts.append(digests_of(*zip(*some, strict=True)))
            any_roomless = any_roomless or any(not room for room, _ in some)
        return cls(np.concatenate(parts) if parts else (), any_roomless)

    def __bool__(self) -> bool:
        return bool(len(self.held) or self.runs)

    def __len__(self) -> int:
        return sum(map(len, self.digests()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RedactedEvents):
            return NotImplemented
        return len(self) == len(other) == len(self | other)

    __hash__ = None  # type: ignore[assignment]

    def __or__(self, other: RedactedEvents) -> RedactedEvents:
        return RedactedEvents(
            np.concatenate([self.held, other.held]),
            self.any_roomless or other.any_roomless,
            [*dict.fromkeys((*self.runs, *other.runs))],
        )

    def digests(self) -> Iterator[Any]:
        """The digests, each once, in ascending order: as arrays of limited size.

        :raises FolderNotShared: :raises DigestRunDamaged:
        """
        return merged([self.held, *(run.digests for run in self.runs)])

    def contain(self, rooms: Sequence[str | None], events: Sequence[str | None]) -> Any:
        """Which of some events are in the set, as an array of booleans.

        :raises FolderNotShared: :raises DigestRunDamaged:
        """
        found = self._contain(digests_of(rooms, events))
        if self.any_roomless:
            found |= self._contain(digests_of([None] * len(events), events))
        return found & np.array([event is not None for event in events], bool)

    def _contain(self, digests: Any) -> Any:
        found = np.zeros(len(digests), bool)
        for part in (self.held, *(run.digests for run in self.runs)):
            if len(part):
                at = np.searchsorted(part, digests)
                found |= part[np.minimum(at, len(part) - 1)] == digests
        return found


class StoredRedactedEvents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A set of redacted events without the folder of its files, as it is stored in JSON.

    :ivar held: digests
    :ivar runs: names and lengths of files
    """

    held: bytes = b""
    any_roomless: bool = False
    runs: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, events: RedactedEvents) -> StoredRedactedEvents:
        """A set whose files are all in one folder."""
        runs = tuple((run.path.name, run.length) for run in events.runs)
        return cls(events.held.tobytes(), events.any_roomless, runs)

    def events(self, folder: LakePath) -> RedactedEvents:
        """The set.

        :raises ValueError: ``held`` is cut off
        """
        runs = [DigestRun(folder / name, length) for name, length in self.runs]
        return RedactedEvents(np.frombuffer(self.held, DIGESTS), self.any_roomless, runs)


class RedactedEventsCollector:
    """Collects redacted events, and writes them to files when there are many.

    :param folder: for the files; those that are no longer needed are left there
    :param events: the first ones
    """

    def __init__(self, folder: LakePath, events: RedactedEvents | None = None) -> None:
        first = RedactedEvents() if events is None else events
        self._folder = folder
        self._runs = [*first.runs]
        self._held = [first.held]
        self._held_length = len(first.held)
        self._any_roomless = first.any_roomless

    def add(self, events: RedactedEvents) -> None:
        """Add the events of a set.

        :raises FolderNotShared: files cannot be written
        """
        self._held.append(events.held)
        self._held_length += len(events.held)
        self._any_roomless |= events.any_roomless
        for run in events.runs:
            self._runs = self._with_run(run)
        if self._held_length > MOST_HELD:
            self._write_held()

    def events(self, most_held: int = MOST_HELD) -> RedactedEvents:
        """The events so far.

        :param most_held: write them all to files if more than this number is in memory
        :raises FolderNotShared: files cannot be written
        """
        held = np.unique(np.concatenate(self._held))
        self._held, self._held_length = [held], len(held)
        if len(held) > most_held:
            self._write_held()
        return RedactedEvents(self._held[0], self._any_roomless, self._runs)

    def _write_held(self) -> None:
        run = write_run(self._folder, merged([np.unique(np.concatenate(self._held))]))
        # An object store may fail here, and the caller tries again: what is held is held until then.
        self._runs = self._with_run(run)
        self._held, self._held_length = [np.empty(0, DIGESTS)], 0

    def _with_run(self, run: DigestRun) -> list[DigestRun]:
        """The runs with another one, which some of them may be merged with."""
        # Each run is more than twice as long as all shorter ones together, so there are few, and each
        # digest is rewritten a few times.
        runs = sorted([*self._runs, run], key=len, reverse=True)
        begin, length = len(runs) - 1, len(runs[-1])
        while begin and len(runs[begin - 1]) <= 2 * length:
            begin -= 1
            length += len(runs[begin])
        if begin < len(runs) - 1:
            together = merged([each.digests for each in runs[begin:]])
            runs[begin:] = [write_run(self._folder, together)]
        return runs


_NO_TIMES = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class AppliedRedactions:
    """The whole events to which redactions apply. It can be pickled for tasks.

    :ivar events: the events
    :ivar ids: the same without their rooms, for rows whose room has been erased
    :ivar times: their ``origin_server_ts``, in ascending order; None if some are not known, or there are too many
    """

    events: RedactedEvents = field(default_factory=RedactedEvents)
    ids: RedactedEvents = field(default_factory=RedactedEvents)
    times: Any = field(default_factory=_NO_TIMES.copy)

    @classmethod
    def collected_in(cls, folder: LakePath) -> Callable[[Iterable[RedactedRow]], AppliedRedactions]:
        """A function that makes the set of some rows, with files in a folder if they are many.

        :raises FolderNotShared: files cannot be written
        """
        return partial(cls._of, folder)

    @classmethod
    def _of(cls, folder: LakePath, rows: Iterable[RedactedRow]) -> AppliedRedactions:
        waiting, times = iter(rows), _NO_TIMES
        events, ids = RedactedEventsCollector(folder), RedactedEventsCollector(folder)
        while some := list(islice(waiting, AT_ONCE)):
            of_rooms, of_events, of_times = zip(*some, strict=True)
            events.add(RedactedEvents(digests_of(of_rooms, of_events)))
            ids.add(RedactedEvents(digests_of([None] * len(of_events), of_events)))
            times = _joined_times(times, None if None in of_times else of_times)
        return cls(events.events(), ids.events(), times)

    def __len__(self) -> int:
        return len(self.events)

    def __bool__(self) -> bool:
        return bool(self.events)

    def __or__(self, other: AppliedRedactions) -> AppliedRedactions:
        times = _joined_times(self.times, other.times)
        return AppliedRedactions(self.events | other.events, self.ids | other.ids, times)

    def contain(self, rooms: Sequence[str | None], events: Sequence[str | None]) -> Any:
        """Which of some events are in the set, as an array of booleans; a room that is None is not known.

        :raises FolderNotShared: :raises DigestRunDamaged:
        """
        found = self.events.contain(rooms, events)
        unknown = np.array([room is None for room in rooms], bool)
        if unknown.any():
            found |= unknown & self.ids.contain([None] * len(events), events)
        return found

    def without_times(self) -> AppliedRedactions:
        """The same for tasks, which do not choose files."""
        return replace(self, times=None)


NONE_APPLIED = AppliedRedactions()


def _joined_times(known: Any, more: Any) -> Any:
    if known is None or more is None:
        return None
    times = np.union1d(known, np.array(more, np.int64))
    return times if len(times) <= MOST_HELD else None


def digests_of(rooms: Iterable[str | None], events: Iterable[str | None]) -> Any:
    """The digests of some events, as an array."""
    # With the length of the first part, so that no other pair has the same text.
    pairs = ((room or "", event) for room, event in zip(rooms, events, strict=True))
    made = (
        hashlib.blake2b(f"{len(room)} {room}{event}".encode(), digest_size=DIGEST_BYTES).digest()
        for room, event in pairs
    )
    return np.frombuffer(b"".join(made), DIGESTS)
