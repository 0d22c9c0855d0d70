"""Parsed rooms of the test vectors, for the benchmarks of the room rules."""

from __future__ import annotations

import gzip
import json
import os
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

#: A folder with more vectors than the repository has, if the environment names one.
_MORE = os.environ.get("SYNREPL_TEST_VECTORS")

#: The folders of the vectors; the first one that has a file wins.
FOLDERS = (*([Path(_MORE)] if _MORE else []), REPOSITORY / "tests" / "rooms" / "vectors")


def found(name: str) -> Path | None:
    """The path of a file of the vectors; None if it is missing."""
    paths = [folder / name for folder in FOLDERS]
    return next((path for path in paths if path.exists()), None)


class ConflictedStates(NamedTuple):
    """Conflicting states of a room, with everything that resolving them needs, in memory."""

    version: RoomVersion
    events: Mapping[str, Event]
    chains: BitSetChains
    states: list[dict[StateKey, str]]
    resolved: dict[StateKey, str] | None

    def full_conflicted_set(self) -> set[str]:
        """The full conflicted set of the states."""
        return full_conflicted_set(self.version, self.states, self.chains)

    def smaller(self, size: int) -> ConflictedStates:
        """The room with fewer conflicted keys, so that the full conflicted set has about ``size`` events."""
        first, *others = self.states
        keys = sorted({key for each in others for key, _ in first.items() ^ each.items()})
        disputed = set(keys)
        for kept in range(1, len(keys) + 1):
            # Evenly distributed over all keys.
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
    """Load a file of ``perf/``; None if it is missing."""
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

    :ivar current: its state at the end
    :ivar keys: public keys of its servers, in unpadded Base64
    """

    version: RoomVersion
    raw: list[bytes]
    events: list[Event]
    current: dict[StateKey, str]
    keys: dict[str, Any]


def recorded(name: str) -> Recorded | None:
    """Load a file of ``dags/``; None if it is missing."""
    path = found(f"dags/{name}.jsonl.gz")
    if path is None:
        return None
    with gzip.open(path, "rt") as file:
        head = json.loads(next(file))
        rows = [json.loads(line)["event"] for line in file]
    version = room_version(head["room_version"])
    events = [event_of(row, version) for row in rows]
    # Without whitespace, as servers send them to each other.
    raw = [json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode() for row in rows]
    return Recorded(version, raw, events, _state(head["current_state"]), head["server_keys"])


def _state(entries: list[list[str]]) -> dict[StateKey, str]:
    return {(kind, key): event_id for kind, key, event_id in entries}
