"""Functions shared by the targets: reading documents as rooms, and vectors as documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from synrepl.core.jsons import decode
from synrepl.rooms import Event, RoomVersion, event_of, room_version
from tests.rooms.vector_files import files, lines

#: Number of rows of each vector file that become seeds.
SEEDS_OF_A_FILE = 20

#: Number of events of a room in a seed: shorter inputs are executed more often.
SMALL = 22


class Target(NamedTuple):
    """Something that accepts arbitrary input.

    :ivar run: may raise synrepl's own errors; any other exception is a finding
    :ivar seeds: initial inputs
    """

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]


class Wrong(Exception):
    """A result contradicts itself."""


def rows_of(*patterns: str, every: int = 1) -> Iterator[dict[str, Any]]:
    for pattern in patterns:
        for name in files(pattern):
            yield from islice(lines(name), 0, SEEDS_OF_A_FILE * every, every)


def document_of(data: bytes) -> tuple[dict[str, Any], RoomVersion]:
    """Decode a JSON object and the room version in it.

    :raises SynreplError: it is not valid JSON, or has no known version
    """
    document = decode(data, "the input")
    if not isinstance(document, dict):
        document = {}
    return document, room_version(document.get("version"))


def list_of(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def event_in(value: object, version: RoomVersion) -> Event:
    return event_of(value if isinstance(value, dict) else {}, version)


def events_in(value: object, version: RoomVersion) -> Iterator[Event]:
    return (event_in(each, version) for each in list_of(value))


def event_citing(value: object, ids: list[str], version: RoomVersion) -> Event:
    fields = _fields(value)
    cited = [ids[each] for each in numbers_in(value, "cites", ids)]
    pairs = "event_id" in fields
    fields["auth_events"] = [[each, {}] for each in cited] if pairs else cited
    followed = [ids[each] for each in numbers_in(value, "follows", ids)]
    fields["prev_events"] = [[each, {}] for each in followed] if pairs else followed
    return event_of(fields, version)


def numbers_in(value: object, name: str, ids: list[str]) -> list[int]:
    numbers = list_of(value.get(name)) if isinstance(value, dict) else []
    return [each for each in numbers if isinstance(each, int) and 0 <= each < len(ids)]


def _fields(value: object) -> dict[str, Any]:
    event = value.get("event") if isinstance(value, dict) else None
    return dict(event) if isinstance(event, dict) else {}


def with_auth_chains(ids: set[str], events: Mapping[str, Any]) -> set[str]:
    found, left = set(ids), list(ids)
    while left:
        for cited in cited_by(events[left.pop()]):
            if cited not in found:
                found.add(cited)
                left.append(cited)
    return found


def cited_by(event: Mapping[str, Any], name: str = "auth_events") -> list[str]:
    return [each if isinstance(each, str) else each[0] for each in event[name]]


def followed_by(event: Mapping[str, Any]) -> list[str]:
    return cited_by(event, "prev_events")
