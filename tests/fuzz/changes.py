"""Mutations of JSON documents that remain JSON, so that the parser rejects few inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

#: Values that are unexpected in most places.
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    50,
    100,
    2**53 - 1,
    2**53,
    -(2**63),
    10**30,
    1.5,
    -0.0,
    1e300,
    "",
    "0",
    "50",
    " 5",
    "+1",
    "1_0",
    "\u0660",
    "-",
    "@",
    "@:",
    ":x",
    "!",
    "$",
    "\x00",
    "\u2028",
    "é" * 128,
    "x" * 300,
    [],
    {},
    [[]],
    [None],
    [{}],
    {"": {}},
    {"a": [1, "b"]},
    ["a", "a"],
)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


#: Values and keys that the rules look for.
WORDS = _words(
    "join invite leave ban knock public private restricted knock_restricted "
    "m.room.create m.room.member m.room.power_levels m.room.join_rules m.room.aliases "
    "m.room.third_party_invite m.room.redaction m.room.history_visibility m.room.message "
    "m.room_membership world_readable shared invited joined "
    "1 2 3 4 5 6 7 8 9 10 11 12"
)
KEYS = _words(
    "type sender state_key content room_id event_id depth origin_server_ts prev_events auth_events "
    "hashes sha256 signatures unsigned redacts membership join_rule allow room_version creator "
    "additional_creators m.federate predecessor users users_default events events_default "
    "state_default ban kick redact invite notifications room third_party_invite signed token mxid "
    "public_key public_keys join_authorised_via_users_server history_visibility"
)

#: A container and a key or index in it.
Place = tuple[Any, Any]


def changed(data: bytes, random: Random) -> bytes | None:
    """The document with a few changes; None if it is not valid JSON."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    box = [document]
    try:
        for _ in range(random.choice((1, 1, 1, 2, 3, 5))):
            places = list(_places(box))
            random.choice(_WAYS)(random.choice(places), places, random)
        return json.dumps(box[0], separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return None


def _places(value: Any) -> Iterator[Place]:
    stack = [value]
    while stack:
        container = stack.pop()
        keys = container if isinstance(container, dict) else range(len(container))
        for key in keys:
            yield container, key
            if isinstance(container[key], (dict, list)):
                stack.append(container[key])


def deep_copy(value: Any) -> Any:
    """A deep copy of a JSON value.

    :raises RecursionError: it is nested too deeply
    """
    return json.loads(json.dumps(value))


def _odd(place: Place, places: list[Place], random: Random) -> None:
    container, key = place
    container[key] = deep_copy(random.choice(ODD))


def _word(place: Place, places: list[Place], random: Random) -> None:
    container, key = place
    container[key] = random.choice(WORDS)


def _from_elsewhere(place: Place, places: list[Place], random: Random) -> None:
    container, key = place
    other, at = random.choice(places)
    container[key] = deep_copy(other[at])


def _drop(place: Place, places: list[Place], random: Random) -> None:
    container, key = place
    if len(container) > 1:
        del container[key]


def _add(place: Place, places: list[Place], random: Random) -> None:
    container, key = place
    inner = container[key]
    into = inner if isinstance(inner, (dict, list)) else container
    other, at = random.choice(places)
    value = deep_copy(other[at]) if random.random() < 0.5 else deep_copy(random.choice(ODD))
    if isinstance(into, dict):
        into[random.choice(KEYS)] = value
    else:
        into.insert(random.randint(0, len(into)), value)


def _nudge(place: Place, places: list[Place], random: Random) -> None:
    container, key = place
    value = container[key]
    if isinstance(value, int):
        container[key] = value + random.choice((-1, 1, 49, 50))
    elif isinstance(value, str):
        cut = random.randint(0, len(value))
        container[key] = value[:cut] + random.choice(("", ":", "x", "\x00", "é")) + value[cut:][1:]
    else:
        container[key] = [value]


def _other_type(place: Place, places: list[Place], random: Random) -> None:
    container, key = place
    value = container[key]
    if isinstance(value, str) and value.lstrip("-").isdecimal() and len(value) < 30:
        container[key] = int(value)
    elif isinstance(value, (int, float)):
        container[key] = str(value)
    elif isinstance(value, list):
        container[key] = {str(number): each for number, each in enumerate(value)}
    elif isinstance(value, dict):
        container[key] = list(value.values())


def _other_key(place: Place, places: list[Place], random: Random) -> None:
    container, key = place
    if isinstance(container, dict):
        strings = [other[at] for other, at in places if isinstance(other[at], str)]
        new = random.choice(strings or KEYS) if random.random() < 0.5 else random.choice(KEYS)
        container[new] = container.pop(key)


Way = Callable[[Place, list[Place], Random], None]
_WAYS: tuple[Way, ...] = (
    _odd,
    _word,
    _from_elsewhere,
    _from_elsewhere,
    _drop,
    _add,
    _nudge,
    _other_type,
    _other_key,
)
