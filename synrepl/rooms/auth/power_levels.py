"""Power levels: the levels in force at a state, and which changes to them are allowed.

Sources: steps 8 and 10 of https://spec.matrix.org/v1.16/rooms/v12/#authorization-rules; the section
"``m.room.power_levels`` events accept values as strings" (and "as floats") of
https://spec.matrix.org/v1.16/rooms/v1/ for versions before 10 (and 6);
https://spec.matrix.org/v1.16/client-server-api/#mroompower_levels for defaults.

Each power levels event is parsed once, however many events it authorises: the last few hundred are
cached as :class:`PowerLevels`. Events are immutable, so the cache never goes stale.

The auth rule for redactions, in the versions that have one, is here as well: step 11 of
https://spec.matrix.org/v1.16/rooms/v1/#authorization-rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from synrepl.rooms.auth.create import creators_of
from synrepl.rooms.event import Event
from synrepl.rooms.event_types import POWER_LEVELS_KEY
from synrepl.rooms.identifiers import is_user_id, server_part
from synrepl.rooms.refusal import Refusal
from synrepl.rooms.state import StateEvents
from synrepl.rooms.versions import RoomVersion

#: Defaults for levels that ``m.room.power_levels`` leaves out, or when there is no such event.
NAMED: Mapping[str, int] = {
    "users_default": 0,
    "events_default": 0,
    "state_default": 50,
    "ban": 50,
    "redact": 50,
    "kick": 50,
    "invite": 0,
}

#: The creator's power while the room has no ``m.room.power_levels``.
_CREATOR_AT_FIRST = 100

#: The power of creators in version 12.
_INFINITE = math.inf

#: Number of parsed power levels events that are cached.
_KEPT = 256


class PowerLevels(msgspec.Struct, frozen=True):
    """The levels in force: the power of each user, and the power that each action takes.

    :ivar users: users whose power is not ``users_default``
    :ivar events: event types whose level is not ``events_default`` or ``state_default``
    """

    users: dict[str, float]
    events: dict[str, int]
    users_default: int
    events_default: int
    state_default: int
    ban: int
    redact: int
    kick: int
    invite: int

    def of(self, user: str) -> float:
        """The power of a user; infinite for creators in version 12."""
        return self.users.get(user, self.users_default)

    def to_send(self, event: Event) -> int:
        """The power it takes to send an event."""
        needed = self.events.get(event.type)
        if needed is not None:
            return needed
        return self.events_default if event.state_key is None else self.state_default


class PowerLevelsContent(msgspec.Struct, frozen=True):
    """The content of an ``m.room.power_levels``, without defaults and without invalid values.

    :ivar error: the first rule that the content breaks
    """

    named: dict[str, int]
    events: dict[str, int]
    notifications: dict[str, int]
    users: dict[str, int]
    error: Refusal | None


def power_levels_at(state: StateEvents, create: Event) -> PowerLevels:
    """The levels in force at a state of a room."""
    return power_levels_of(state.get(POWER_LEVELS_KEY), create)


@lru_cache(maxsize=_KEPT)
def power_levels_of(power: Event | None, create: Event) -> PowerLevels:
    """The levels in force under a power levels event, or without one.

    A value that is not a valid level counts as absent.
    """
    above = create.version.creators_have_infinite_power
    named: dict[str, int] = dict(NAMED)
    users: dict[str, float] = {}
    if power is None:
        users = dict.fromkeys(creators_of(create), _CREATOR_AT_FIRST)
        events: dict[str, int] = {}
    else:
        parsed = parse_power_levels(power)
        named |= parsed.named
        users |= parsed.users
        events = parsed.events
    if above:
        users |= dict.fromkeys(creators_of(create), _INFINITE)
    return PowerLevels(users, events, **named)


@lru_cache(maxsize=_KEPT)
def parse_power_levels(event: Event) -> PowerLevelsContent:
    """Parse the content of an ``m.room.power_levels``, checking steps 10.1 to 10.3 of version 12."""
    content, version = event.content, event.version
    errors: list[Refusal] = []
    named = _levels({name: content[name] for name in NAMED if name in content}, version, "", errors)
    maps = {}
    for name in ("events", "notifications", "users"):
        value = content.get(name, {})
        if name == "notifications" and not version.notification_levels:
            value = {}
        elif not isinstance(value, dict):
            # Versions before 10 require only ``users`` to be an object; servers read others as empty.
            if name == "users" or version.integer_levels:
                errors.append(Refusal("levels-no-object", f"{name} is no object"))
            value = {}
        maps[name] = _levels(value, version, f" in {name}", errors)
    if not all(map(is_user_id, maps["users"])):
        errors.append(Refusal("levels-user", "users has a key that is no user ID"))
    return PowerLevelsContent(named, **maps, error=errors[0] if errors else None)


def parse_level(value: object, version: RoomVersion) -> int | None:
    """Parse a level; None when the value is not one.

    Before version 10 a level is whatever Python's ``int`` accepts, as in Synapse: text
    with spaces, a sign, underscores or digits of other scripts, and booleans
    (docs/adr/0016-events-and-auth-rules.md). Numbers with a fraction, which exist only where JSON is
    not strict (before 6), are truncated.
    """
    if type(value) is int:
        return value
    if version.integer_levels:
        return None
    try:
        if isinstance(value, (str, bool)) or (isinstance(value, float) and not version.strict_json):
            return int(value)
    except (ValueError, OverflowError):  # no digits, or thousands of them; not finite
        pass
    return None


def _levels(
    values: Mapping[str, Any], version: RoomVersion, where: str, errors: list[Refusal]
) -> dict[str, int]:
    levels = {}
    for name, value in values.items():
        level = parse_level(value, version)
        if level is None:
            errors.append(Refusal("level-no-integer", f"{name:.100}{where} is no integer"))
        else:
            levels[name] = level
    return levels


def check_to_send(event: Event, levels: PowerLevels) -> Refusal | None:
    """Check step 8: the sender needs the power that the event type takes."""
    if levels.to_send(event) > levels.of(event.sender):
        return Refusal(
            "send-level",
            f"{event.type} takes power {levels.to_send(event)},"
            f" {event.sender} has {levels.of(event.sender)}",
        )
    return None


def check_change(
    event: Event, state: StateEvents, create: Event, levels: PowerLevels
) -> Refusal | None:
    """Check step 10: which new power levels are allowed under those in force."""
    new, power = parse_power_levels(event), levels.of(event.sender)
    refusal = new.error or _no_creators(new, create)
    if refusal is not None:
        return refusal
    before = state.get(POWER_LEVELS_KEY)
    if before is None:  # step 10.5
        return None
    old = parse_power_levels(before)
    return (
        _within(power, old.named, new.named)
        or _within(power, old.events, new.events)
        or _within(power, old.notifications, new.notifications)
        or _users_below(power, event.sender, old.users, new.users)
        or _users_within(power, old.users, new.users)
    )


def _no_creators(new: PowerLevelsContent, create: Event) -> Refusal | None:
    """Step 10.4, from version 12: ``users`` must not name a creator."""
    if create.version.creators_have_infinite_power and not new.users.keys().isdisjoint(
        creators_of(create)
    ):
        return Refusal("levels-name-creator", "a creator of the room must not be among users")
    return None


def _within(power: float, old: Mapping[str, int], new: Mapping[str, int]) -> Refusal | None:
    """Steps 10.6 to 10.8: no change from, or to, a level above the sender's power."""
    for name, was, becomes in _changes(old, new):
        if was is not None and was > power:
            return Refusal("level-above-old", f"{name:.100} is {was}, above the sender's {power}")
        if becomes is not None and becomes > power:
            return Refusal(
                "level-above-new", f"{name:.100} becomes {becomes}, above the sender's {power}"
            )
    return None


def _users_below(
    power: float, sender: str, old: Mapping[str, int], new: Mapping[str, int]
) -> Refusal | None:
    """Step 10.9: no change to the level of another user who is not below the sender."""
    for user, was, _ in _changes(old, new):
        if user != sender and was is not None and was >= power:
            return Refusal("level-of-peer", f"{user} has {was}, not below the sender's {power}")
    return None


def _users_within(power: float, old: Mapping[str, int], new: Mapping[str, int]) -> Refusal | None:
    """Step 10.10: no user gets more power than the sender has."""
    for user, _, becomes in _changes(old, new):
        if becomes is not None and becomes > power:
            return Refusal("level-gift", f"{user} gets {becomes}, above the sender's {power}")
    return None


def _changes(
    old: Mapping[str, int], new: Mapping[str, int]
) -> Iterator[tuple[str, int | None, int | None]]:
    """Yield entries that are added, changed or removed, with old and new value."""
    for name, was in old.items():
        becomes = new.get(name)
        if was != becomes:
            yield name, was, becomes
    for name, becomes in new.items():
        if name not in old:
            yield name, None, becomes


def check_redaction(event: Event, levels: PowerLevels) -> Refusal | None:
    """Check step 11: redacting takes power, or a target from the same server."""
    if levels.of(event.sender) >= levels.redact:
        return None
    target, server = event.redacts, server_part(event.event_id)
    if server and target is not None and server_part(target) == server:
        return None
    return Refusal("redact-level", f"{event.sender} lacks the power to redact")
