"""Judging an event of a room: checks 4 to 6, over any view of the room.

Sources: https://spec.matrix.org/v1.16/server-server-api/#checks-performed-on-receipt-of-a-pdu, #rejection,
#soft-failure, https://spec.matrix.org/v1.16/server-server-api/#room-state-resolution, and the proposal
on faster joins. The state before an event is the resolution of the states after its prev events. A rejected
event and a message event leave the state unchanged.

The code is written once, as lookups (:mod:`synrepl.rooms.lookups`). An ordinary event takes two rounds. One
whose prev events have different states takes six more, however large the states are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from synrepl.rooms.chains import auth_dependencies, create_id
from synrepl.rooms.checks import Check, Checks
from synrepl.rooms.event import Event
from synrepl.rooms.judged import Judged, UnknownEvents
from synrepl.rooms.lookups import Lookup, run
from synrepl.rooms.ordering import EventOrdering, topological_ordering
from synrepl.rooms.refusal import Refusal
from synrepl.rooms.resolution_lookups import (
    ResolutionCache,
    lookup_resolved_state,
    state_of_entries,
    states_after,
)
from synrepl.rooms.view import (
    HEADS,
    EventsRequest,
    KnownEvents,
    RoomHeads,
    RoomView,
    S,
    StateAt,
    StatesRequest,
)


def judge(
    event: Event,
    view: RoomView[S],
    state_before: S | None = None,
    *,
    partial: bool | None = None,
    live: bool = True,
    stream: int = 0,
    cache: ResolutionCache[S] | None = None,
) -> Judged[S]:
    """Judge an event; :func:`lookup_judged`, run on a view."""
    lookup: Lookup[Judged[S]] = lookup_judged(
        event, state_before, partial=partial, live=live, stream=stream, cache=cache
    )
    return run(lookup, view)


def judge_outlier(event: Event, view: RoomView[S], stream: int = 0) -> Judged[S]:
    """Judge an outlier; :func:`lookup_judged_outlier`, run on a view."""
    lookup: Lookup[Judged[S]] = lookup_judged_outlier(event, stream)
    return run(lookup, view)


def lookup_judged(
    event: Event,
    state_before: S | None = None,
    *,
    partial: bool | None = None,
    live: bool = True,
    stream: int = 0,
    cache: ResolutionCache[S] | None = None,
) -> Lookup[Judged[S]]:
    """Judge an event in a room, without changing the room.

    :param state_before: the state before it as another server reported it; by default it is derived from
        the prev events, which must be known then
    :param partial: whether ``state_before`` is partial; by default, whether the state of any
        prev event is
    :param live: whether check 6 applies, which is for events sent as they happen, not for history
    :param stream: its stream ordering, if already assigned
    :param cache: the room's cache of resolved states
    :raises UnknownEvents: an auth event or prev event is not known
    """
    parents = event.prev_event_ids
    needed = auth_dependencies(event)
    heads: RoomHeads[S]
    at: Mapping[str, StateAt[S]]
    known: KnownEvents
    heads, at, known = yield (HEADS, StatesRequest(parents), EventsRequest(needed))
    missing = [each for each in needed if each not in known.events]
    if state_before is None:
        missing += [each for each in parents if each not in at or at[each].state_after is None]
    if missing:
        raise unknown_events_error(event, missing)
    here: list[StateAt[S]] = []
    for each in parents:
        if each in at and each != event.event_id:
            here.append(at[each])
    numbers = [each.topological for each in here]
    ordering = EventOrdering(
        topological_ordering(event.depth, numbers, len(numbers) == len(parents)), stream
    )
    if partial is None:
        partial = True in [each.partial for each in here]
    state: S
    if state_before is not None:
        state = state_before
    elif parents:
        states = states_after(at, parents, event.room_id)
        state = yield from lookup_resolved_state(event.version, states, cache)
    else:
        state = heads.empty_state
    checks = _checks(event, known)
    failed, soft_failure = None, None
    refusal = checks.by_auth_events(known.rejected)
    if refusal is not None:
        failed = Check.AUTH_EVENTS
    else:
        before = state
        if partial:
            # Check 5 with partial state: the auth events take part in the resolution.
            claimed = state_of_entries(heads.empty_state, checks.auth_events_state())
            before = yield from lookup_resolved_state(event.version, [state, claimed], cache)
        refusal = yield from checks.lookup_by_state(before)
        if refusal is not None:
            failed = Check.STATE_BEFORE
        elif _is_soft_failable(heads, parents, live, partial):
            soft_failure = yield from _lookup_by_current_state(event, checks, heads, cache)
            if soft_failure is not None:
                failed = Check.CURRENT_STATE
    after = state
    if refusal is None and event.state_key is not None:
        after = state.with_entry((event.type, event.state_key), event.event_id)
    return Judged(event, state, after, refusal, failed, soft_failure, partial, ordering)


def lookup_judged_outlier(event: Event, stream: int = 0) -> Lookup[Judged[S]]:
    """Judge an outlier by check 4 alone.

    :raises UnknownEvents: an auth event is not known
    """
    needed = auth_dependencies(event)
    (known,) = yield (EventsRequest(needed),)
    missing = [each for each in needed if each not in known.events]
    if missing:
        raise unknown_events_error(event, missing)
    refusal = _checks(event, known).by_auth_events(known.rejected)
    failed = None if refusal is None else Check.AUTH_EVENTS
    ordering = EventOrdering(topological_ordering(event.depth, (), all_known=False), stream)
    return Judged(event, None, None, refusal, failed, None, False, ordering)


def unknown_events_error(event: Event, missing: Sequence[str]) -> UnknownEvents:
    """The error for an event that cannot be judged yet; it names at most five missing events."""
    some = ", ".join(list(dict.fromkeys(missing))[:5])
    return UnknownEvents(missing=some, room_id=event.room_id, event_id=event.event_id)


def _is_soft_failable(
    heads: RoomHeads[S], parents: Sequence[str], live: bool, partial: bool
) -> bool:
    """Whether check 6 applies and could differ from check 5.

    While the room has partial state, nothing is soft-failed.
    """
    return (
        live and not heads.is_partial and not partial and heads.forward_extremities != set(parents)
    )


def _lookup_by_current_state(
    event: Event, checks: Checks, heads: RoomHeads[S], cache: ResolutionCache[S] | None
) -> Lookup[Refusal | None]:
    """Check 6."""
    ends: Collection[str] = heads.forward_extremities
    if not ends:
        return (yield from checks.lookup_by_state(heads.empty_state))
    (at,) = yield (StatesRequest(ends),)
    states = states_after(at, ends, event.room_id)
    current: S = yield from lookup_resolved_state(event.version, states, cache, checks.keys)
    return (yield from checks.lookup_by_state(current))


def _checks(event: Event, known: KnownEvents) -> Checks:
    """The checks of an event, with its auth events and an implied ``m.room.create``.

    A room ID is valid only when its ``m.room.create`` was accepted.
    """
    cited = [known.events[each] for each in event.auth_event_ids]
    create = None
    if event.version.room_id_is_create_hash and not event.is_create:
        create_event_id = create_id(event)
        if create_event_id not in known.rejected:
            create = known.events.get(create_event_id)
    return Checks(event, cited, create)
