"""Rooms of the test vectors, parsed, for the benchmarks of the room rules."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.child import REPOSITORY
from synrepl.rooms import (
    BitSetChains,
    Event,
    RoomVersion,
    StateKey,
    event_of,
    full_conflicted_set,
    room_version,
)

#: Where the whole set is, and where the part of it that the tests need is.
FOLDERS = (
    REPOSITORY.parent / "shared" / "vectors",
    REPOSITORY / "tests" / "rooms" / "vectors",
)


def found(name: str) -> Path | None:
    """A file of the vectors, if it is here."""
    paths = [folder / name for folder in FOLDERS]
    return next((path for path in paths if path.exists()), None)


class ConflictedStates(NamedTuple):
    """States of a room that are to be resolved, with all that it takes in memory."""

    version: RoomVersion
    events: Mapping[str, Event]
    chains: BitSetChains
    states: list[dict[StateKey, str]]
    resolved: dict[StateKey, str] | None

    def full_conflicted_set(self) -> set[str]:
        """What the resolution goes through."""
        return full_conflicted_set(self.version, self.states, self.chains)

    def smaller(self, size: int) -> ConflictedStates:
        """The same room with fewer keys in conflict, so that the full conflicted set has about that size."""
        first, *others = self.states
        keys = sorted({key for each in others for key, _ in first.items() ^ each.items()})
        disputed = set(keys)
        for kept in range(1, len(keys) + 1):
            # Evenly from among all of them.
            keep = {keys[place * len(keys) // kept] for place in range(kept)}
            states = [
                {key: state[key] for key in state if key in keep or key not in disputed}
                for state in self.states
            ]
            made = self._replace(states=states, resolved=None)
            if len(made.full_conflicted_set()) >= size:
                return made
        return self


def conflicted_states(name: str) -> ConflictedStates | None:
    """A file of ``perf/``."""
    path = found(f"perf/{name}.json.gz")
    if path is None:
        return None
    with gzip.open(path, "rt") as file:
        document = json.load(file)
    version = room_version(document["room_version"])
    events = {row["event_id"]: event_of(row["event"], version) for row in document["events"]}
    states = [_state(entries) for entries in document["state_sets"]]
    chains = BitSetChains(events.values())
    return ConflictedStates(version, events, chains, states, _state(document["resolved"]))


class Recorded(NamedTuple):
    """A whole room in order of arrival.

    :ivar current: its state in the end
    :ivar keys: of its servers, unpadded Base64
    """

    version: RoomVersion
    raw: list[bytes]
    events: list[Event]
    current: dict[StateKey, str]
    keys: dict[str, Any]


def recorded(name: str) -> Recorded | None:
    """A file of ``dags/``."""
    path = found(f"dags/{name}.jsonl.gz")
    if path is None:
        return None
    with gzip.open(path, "rt") as file:
        head = json.loads(next(file))
        rows = [json.loads(line)["event"] for line in file]
    version = room_version(head["room_version"])
    events = [event_of(row, version) for row in rows]
    # As one server sends them to another: without blanks.
    raw = [json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode() for row in rows]
    return Recorded(version, raw, events, _state(head["current_state"]), head["server_keys"])


def _state(entries: list[list[str]]) -> dict[StateKey, str]:
    return {(kind, key): event_id for kind, key, event_id in entries}
