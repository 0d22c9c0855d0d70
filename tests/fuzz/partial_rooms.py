"""The target ``partial``: a partial join of arbitrary events, more events in any order, the resync."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from synrepl.core.errors import SynreplError
from synrepl.core.jsons import encode
from synrepl.rooms import Event, PartialJoin, PartialRoom, Room, StateKey, join_partially
from tests.fuzz.inputs import (
    SMALL,
    Wrong,
    cited_by,
    document_of,
    event_citing,
    followed_by,
    list_of,
    numbers_in,
    with_auth_chains,
)
from tests.rooms.dags import apply_delta
from tests.rooms.vector_files import files, lines

#: Index of the event by which a seed joins its room.
JOINED_AT = 12


def run(data: bytes) -> None:
    """Run the resync of a document."""
    partial_room(data)


def partial_room(data: bytes) -> PartialRoom:
    """A room after its resync, as far as the required states are known.

    Steps are ``{"take": "event" | "outliers" | "state", "event": n, "state": [n, ...]}``; events
    follow and cite one another by number.
    """
    document, version = document_of(data)
    ids: list[str] = []
    events: list[Event] = []
    for each in list_of(document.get("events")):
        event = event_citing(each, ids, version)
        ids.append(event.event_id)
        events.append(event)

    def chosen(value: object, name: str) -> list[Event]:
        return [events[number] for number in numbers_in(value, name, ids)]

    join = PartialJoin(
        (chosen(document, "join") or events[-1:] or [event_citing({}, ids, version)])[0],
        chosen(document, "state"),
        chosen(document, "chain"),
        frozenset({"there"}),
    )
    partial = join_partially(Room(version, max_waiting=4), join, "here")
    for step in list_of(document.get("steps")):
        for event in chosen(step, "event"):
            with suppress(SynreplError):
                _take(partial, step.get("take"), event, chosen(step, "state"))
    _resync(partial, join.join.event_id, chosen(document, "whole"))
    return partial


def _take(partial: PartialRoom, how: object, event: Event, state: Sequence[Event]) -> None:
    if how == "outliers":
        partial.add_outliers([*state, event])
    elif how == "state":
        partial.add_with_state(event, _state(state))
    else:
        partial.receive(event)


def _state(events: Sequence[Event]) -> dict[StateKey, str]:
    return {
        (each.type, each.state_key): each.event_id for each in events if each.state_key is not None
    }


def _resync(partial: PartialRoom, join_id: str, whole: Sequence[Event]) -> None:
    """Resync the pending events; of the required states, only that before the join is available."""
    room = partial.room
    known = _state([each for each in whole if each.event_id in room])
    lacking = False
    for event_id, state_needed in partial.pending():
        if state_needed and event_id != join_id:
            lacking = True
            continue
        partial.resync(event_id, known if state_needed else None)
    if partial.is_partial and not lacking:
        raise Wrong("the resync does not end")
    if not partial.is_partial and room.partial_event_ids:
        raise Wrong("a state that is known in part when all is over")
    if not all(event_id in room for event_id in room.forward_extremities):
        raise Wrong("an extremity that never came")
    room.current_state()


def seeds() -> Iterator[bytes]:
    """Rooms of the vectors, joined in the middle without most of their members' events."""
    for name in [*files("dags/*_30*"), *files("dags/*_60*")]:
        head, *rows = islice(lines(name), SMALL)
        yield encode({"version": head["room_version"], **_story(rows)})


def _story(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    number = {row["event_id"]: place for place, row in enumerate(rows)}
    events = {row["event_id"]: row["event"] for row in rows}
    states: list[list[int]] = []
    state: dict[StateKey, str] = {}
    for row in rows:
        apply_delta(state, row["state_before_delta"])
        states.append([number[event_id] for event_id in state.values()])
    whole = states[JOINED_AT]
    part = [
        each
        for each in whole
        if rows[each]["event"]["type"] != "m.room.member"
        or rows[each]["event"]["sender"] == rows[JOINED_AT]["event"]["sender"]
    ]
    needed = {rows[each]["event_id"] for each in part} | {*cited_by(rows[JOINED_AT]["event"])}
    chain = [number[each] for each in with_auth_chains(needed, events)]
    later = range(JOINED_AT + 1, len(rows))
    known = [each for each in range(JOINED_AT) if rows[each]["verdict"] == "accept"]
    steps: list[dict[str, Any]] = [{"take": "outliers", "event": [0], "state": known}]
    # The last event arrives before its predecessors; other events follow events before the join.
    steps += [
        {"take": "state", "event": [each], "state": states[each]}
        for each in [*later[-1:], *later]
        if each == later[-1] or _lowest(rows[each], number) < JOINED_AT
    ]
    steps += [{"take": "event", "event": [each]} for each in later]
    return {
        "events": [
            {
                "event": row["event"],
                "cites": [number[each] for each in cited_by(row["event"])],
                "follows": [number[each] for each in followed_by(row["event"])],
            }
            for row in rows
        ],
        "join": [JOINED_AT],
        "state": part,
        "chain": chain,
        "whole": whole,
        "steps": steps,
    }


def _lowest(row: dict[str, Any], number: dict[str, int]) -> int:
    return min(number[each] for each in followed_by(row["event"]))
