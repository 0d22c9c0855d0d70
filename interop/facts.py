"""Facts to append, like those that real servers have: some for every stream of Synapse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

SERVER = "interop.example"

_TS = 1_584_000_000_000

#: One fact: its rows, as our catalogue has them (the newest columns, older peers get fewer).
Rows = list[list[Any]]


def _user(n: int) -> str:
    return f"@u{n}:{SERVER}"


def _room(n: int) -> str:
    return f"!room{n % 5}:{SERVER}"


def _event(n: int) -> str:
    return f"$event{n}:{SERVER}"


def _events(n: int) -> Rows:
    """Every third event is a member's, which changes the current state as well."""
    if n % 3:
        row = [_event(n), _room(n), "m.room.message", None, None, None, None, False, False]
        return [["ev", row]]
    member = [_room(n), "m.room.member", _user(n)]
    row = [_event(n), *member, None, None, "join", False, False]
    return [["ev", row], ["state", [*member, _event(n)]]]


def _presence(n: int) -> Rows:
    """Two users at once; the text of one is not ASCII."""
    times = [_TS + n, _TS + n + 1, _TS + n]
    first = [_user(n), "online", *times, "zurück – 🙂", True]
    return [first, [_user(n + 1), "unavailable", *times, None, False]]


def _caches(n: int) -> Rows:
    if n % 4 == 0:
        return [["cs_cache_fake", [_room(n), _user(n)], _TS + n]]
    if n % 4 == 1:
        return [["get_user_by_id", None, _TS + n]]
    return [["get_user_by_id", [_user(n)], _TS + n]]


def _federation(n: int) -> Rows:
    edu = {"edu_type": "m.typing", "content": {"room_id": _room(n), "user_id": _user(n)}}
    return [["k", {"key": [_room(n), _user(n)], "edu": edu}]]


def _receipt(n: int) -> Rows:
    return [[_room(n), "m.read", _user(n), _event(n), {"ts": _TS + n, "hidden": False}]]


def _account_data(n: int) -> Rows:
    """With its content, which only the oldest peers get."""
    return [[_user(n), _room(n) if n % 2 else None, "org.example.x", f'{{"n": {n}}}']]


_MAKERS: dict[str, Callable[[int], Rows]] = {
    "events": _events,
    "backfill": lambda n: [[_event(n), _room(n), "m.room.message", None, None, None]],
    "presence": _presence,
    "presence_federation": lambda n: [["other.example", _user(n)]],
    "typing": lambda n: [[_room(n), [_user(each) for each in range(n % 4)]]],
    "receipts": _receipt,
    "push_rules": lambda n: [[_user(n)]],
    "pushers": lambda n: [[_user(n), "org.example.app", f"key{n}", n % 2 == 1]],
    "caches": _caches,
    "public_rooms": lambda n: [[_room(n), n % 2 == 0, None, None]],
    "device_lists": lambda n: [[_user(n)]],
    "to_device": lambda n: [[_user(each)] for each in range(n, n + 1 + n % 3)],
    "federation": _federation,
    "tag_account_data": lambda n: [[_user(n), _room(n), '{"m.favourite": {"order": 0.5}}']],
    "account_data": _account_data,
    "groups": lambda n: [[f"+g{n}:{SERVER}", _user(n), "membership", {"membership": "join"}]],
    "user_signature": lambda n: [[_user(n)]],
    "sticky_events": lambda n: [[_room(n), _event(n)]],
    "thread_subscriptions": lambda n: [[_user(n), _room(n), _event(n)]],
    "un_partial_stated_room": lambda n: [[_room(n)]],
    "un_partial_stated_event": lambda n: [[_event(n), n % 2 == 0]],
    "profile_updates": lambda n: [[_user(n), "update", ["displayname"] if n % 2 else None]],
    "quarantined_media": lambda n: [[None, f"media{n}", n % 2 == 0]],
}


def some(phase: int) -> Iterator[tuple[str, list[Rows]]]:
    """Facts for each stream: for no two streams as many, so that nothing can be mixed up unseen.

    :param phase: later phases bring other facts
    """
    for place, (stream, make) in enumerate(_MAKERS.items()):
        count = 4 + place
        yield stream, [make(1000 * phase + n) for n in range(count)]
