"""Why an event is allowed, was rejected or soft-failed, and who may see it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from synrepl.rooms import (
    Check,
    Event,
    Refusal,
    RoomVersion,
    StateKey,
    Viewer,
    auth_dependencies,
    auth_event_keys,
    authorise,
    check_auth_events,
    check_state_independent,
    permission_of,
    room_version,
    visible_to_user,
)
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.reading.event_access import require_event
from synrepl.storage.rooms.reading.explanations import (
    AuthExplanation,
    CheckExplanation,
    CitedEvent,
    RefusalExplanation,
    RefusedEvent,
    VisibilityExplanation,
)
from synrepl.storage.rooms.states.state_look_ups import entries_at_groups
from synrepl.storage.rooms.tables.events import (
    EventFlags,
    StoredEvent,
    events_by_id,
    events_by_number,
    parsed_events,
    refusal_of,
)
from synrepl.storage.rooms.tables.numbers import RoomRow, room_by_number, slots_of
from synrepl.storage.rooms.visibility.audience import NOBODY_BIT, unpack_audience
from synrepl.storage.rooms.visibility.erased_users import erased_among

_CREATE: StateKey = ("m.room.create", "")
_VISIBILITY: StateKey = ("m.room.history_visibility", "")

#: Length of the chain of causes of a rejection that is followed.
_MAX_CAUSES = 100


def explain_refusal(txn: Transaction, event_id: str) -> RefusalExplanation:
    """Why an event was rejected or soft-failed; for one that was accepted, that it was.

    :raises EventNotStored: it is not here
    """
    return _refusal(txn, require_event(txn, event_id))


def _refusal(txn: Transaction, event: StoredEvent) -> RefusalExplanation:
    outcome = "accepted"
    if event.is_rejected:
        outcome = "rejected"
    elif event.flags & EventFlags.SOFT_FAILED:
        outcome = "soft-failed"
    causes: list[RefusedEvent] = []
    at: StoredEvent | None = event
    while at is not None and at.refusal is not None and len(causes) < _MAX_CAUSES:
        check, refusal = refusal_of(at.refusal)
        causes.append(RefusedEvent(at.event_id, check, refusal))
        if refusal.code != "cites-rejected":
            break
        cited = events_by_number(txn, at.auth_nos).values()
        # An event is judged after those that it cites, so there is no circle.
        rejected = sorted((each for each in cited if each.is_rejected), key=lambda e: e.event_no)
        at = next((each for each in rejected if each.event_id in refusal.sentence), None)
    return RefusalExplanation(event.event_id, outcome, causes)


def explain_auth(txn: Transaction, event_id: str) -> AuthExplanation:
    """What authorises an event; checks 4 and 5 are done again.

    :raises EventNotStored: it is not here
    :raises CorruptEvent: :raises MissingJson: :raises CorruptState: :raises NumberWithoutRow: what is stored is damaged
    """
    stored = require_event(txn, event_id)
    room = room_by_number(txn, stored.room_no)
    version = room_version(room.version)
    event = parsed_events(txn, version, [stored])[event_id]
    rows = events_by_number(txn, stored.auth_nos)
    cited = parsed_events(txn, version, rows.values())
    rejected = {each.event_id for each in rows.values() if each.is_rejected}
    checks = [_by_auth_events(event, cited, rejected)]
    current: Mapping[StateKey, Event] = {}
    if stored.group_before is not None:
        keys = {_CREATE, *auth_event_keys(event)}
        current = _state_events(txn, room, version, stored.group_before, keys)
        checks.append(_checked(Check.STATE_BEFORE, event, current, authorise(event, current)))
    return AuthExplanation(
        event_id,
        [
            CitedEvent(
                each.event_id,
                each.type,
                each.state_key,
                each.event_id in rejected,
                _is_entry(each, current),
            )
            for each in (cited[name] for name in auth_dependencies(event) if name in cited)
        ],
        auth_event_keys(event),
        checks,
        _refusal(txn, stored),
    )


def _is_entry(event: Event, state: Mapping[StateKey, Event]) -> bool:
    found = None if event.state_key is None else state.get((event.type, event.state_key))
    return found is not None and found.event_id == event.event_id


def _by_auth_events(
    event: Event, cited: Mapping[str, Event], rejected: Collection[str]
) -> CheckExplanation:
    """Check 4."""
    named = [cited[each] for each in event.auth_event_ids if each in cited]
    state = {
        (each.type, each.state_key): each
        for each in cited.values()
        if each.state_key is not None
        and (each.event_id in event.auth_event_ids or each.event_id not in rejected)
    }
    refusal = check_state_independent(event) or check_auth_events(event, named, rejected)
    return _checked(Check.AUTH_EVENTS, event, state, refusal or authorise(event, state))


def _checked(
    check: Check, event: Event, state: Mapping[StateKey, Event], refusal: Refusal | None
) -> CheckExplanation:
    if refusal is not None:
        return CheckExplanation(check, False, refusal.code, refusal.sentence)
    return CheckExplanation(check, True, *permission_of(event, state))


def explain_visibility(txn: Transaction, event_id: str, viewer: Viewer) -> VisibilityExplanation:
    """Whether a user may see an event, and by which rule.

    :raises EventNotStored: it is not here
    :raises CorruptEvent: :raises MissingJson: :raises CorruptState: :raises NumberWithoutRow: what is stored is damaged
    """
    stored = require_event(txn, event_id)
    is_seen = stored.audience is not None and not stored.audience & NOBODY_BIT
    if not is_seen or stored.group_before is None or stored.group_after is None:
        what = "an outlier, at which the room is not known" if stored.is_outlier else "rejected"
        return VisibilityExplanation(
            event_id, viewer.user, None, None, "leave", None, None, f"hidden: it is {what}"
        )
    room = room_by_number(txn, stored.room_no)
    version = room_version(room.version)
    member: StateKey = ("m.room.member", viewer.user)
    before = _state_events(txn, room, version, stored.group_before, [_VISIBILITY])
    after = _state_events(txn, room, version, stored.group_after, [member])
    event = parsed_events(txn, version, [stored])[event_id]
    audience = unpack_audience(stored.audience or 0, event_id, stored.sender, event.state_key)
    assert audience is not None
    found = after.get(member)
    membership = "leave" if found is None else str(found.membership)
    verdict = visible_to_user(audience, viewer, membership, erased_among(txn, [stored.sender]))
    visibility = before.get(_VISIBILITY)
    return VisibilityExplanation(
        event_id,
        viewer.user,
        audience.visibility.name.lower(),
        None if visibility is None else visibility.event_id,
        membership,
        None if found is None else found.event_id,
        verdict,
        verdict.explain(viewer.user),
    )


def _state_events(
    txn: Transaction,
    room: RoomRow,
    version: RoomVersion,
    group: int,
    keys: Collection[StateKey],
) -> dict[StateKey, Event]:
    """The events of some entries of a state."""
    named: Sequence[StateKey] = [key for key in keys if "\0" not in "".join(key)]
    slots = slots_of(txn, room.room_no, named)
    entries = entries_at_groups(txn, room, [group], slots)[0]
    rows = events_by_id(txn, list(entries.values()))
    events = parsed_events(txn, version, rows.values())
    return {key: events[each] for key, each in entries.items()}
