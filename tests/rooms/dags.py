"""Rooms of the test vectors (``dags/``), read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from synrepl.rooms.event import Event, event_of
from synrepl.rooms.judged import Judged
from synrepl.rooms.room import Room
from synrepl.rooms.state import StateKey, StateMap
from synrepl.rooms.versions import RoomVersion, room_version
from tests.rooms.vector_files import files, lines

#: Larger files have no labels of soft failures.
LABELLED = 3000


class Line(NamedTuple):
    """An event as it came, and what should become of it."""

    event: Event
    row: dict[str, Any]


class Dag(NamedTuple):
    """A room."""

    name: str
    version: RoomVersion
    head: dict[str, Any]
    lines: list[Line]

    @property
    def events(self) -> list[Event]:
        """As they came."""
        return [line.event for line in self.lines]

    @property
    def soft_failures(self) -> bool:
        """Whether soft failures are labelled."""
        return self.head.get("n_soft_failed") is not None and len(self.lines) < LABELLED

    def states_before(self) -> Iterator[tuple[Line, StateMap | None]]:
        """With each line the state before it, which changes in the next step; None where only its hash is known."""
        state: dict[StateKey, str] = {}
        for line in self.lines:
            delta = line.row.get("state_before_delta")
            if delta is not None:
                apply_delta(state, delta)
            yield line, None if delta is None else state


def dag_names(largest: int = 1 << 20) -> list[str]:
    """The files that are there.

    :param largest: without those of more events, as their names tell
    """
    return [name for name in files("dags/*") if _size(name) <= largest]


def _size(name: str) -> int:
    number = name.split(".")[0].split("_")[-1]
    return int(number) if number.isdecimal() else 0


def dag(name: str) -> Dag:
    """A room of the vectors."""
    rows = lines(name)
    head = next(rows)
    version = room_version(head["room_version"])
    return Dag(name, version, head, [Line(event_of(row["event"], version), row) for row in rows])


def apply_delta(state: dict[StateKey, str], delta: Mapping[str, Any]) -> None:
    """Change a state by a delta of the vectors."""
    for kind, state_key, *_ in delta["del"]:
        del state[kind, state_key]
    state.update(state_of(delta["set"]))


def state_of(rows: Iterable[list[str]]) -> dict[StateKey, str]:
    """A state map of the vectors."""
    return {(kind, state_key): event_id for kind, state_key, event_id in rows}


def hash_of(state: StateMap) -> str:
    """SHA-256 of a state map, as the vectors have it."""
    rows = sorted([*key, event_id] for key, event_id in state.items())
    canonical = json.dumps(rows, separators=(",", ":"), ensure_ascii=False)
    return sha256(canonical.encode()).hexdigest()


def room_of(
    events: Sequence[Event], version: RoomVersion, live: bool = True
) -> tuple[Room, Mapping[str, Judged]]:
    """A room from its events, and the outcome of each."""
    room = Room(version)
    judged = {each.event.event_id: each for event in events for each in room.receive(event, live)}
    return room, judged
