"""Random rooms: any graph, any states, history that came later, outliers in states."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from synrepl.rooms import Event, StateKey
from tests.storage.rooms.written_rooms import State, WrittenEvent, WrittenRoom

USERS = ("@a:x", "@b:x", "@c:y", "nobody")
SERVERS = ("x", "y", "z", "")
_MEMBERSHIPS = ("join", "join", "leave", "invite", "ban", "knock")
_VISIBILITIES = ("joined", "joined", "invited", "shared", "world_readable", None)


def _new_event(draw: Any, room: WrittenRoom) -> Event:
    kind = draw(st.sampled_from(["message"] * 4 + ["member"] * 3 + ["visibility"] * 2 + ["other"]))
    sender = draw(st.sampled_from(USERS))
    if kind == "member":
        content = {"membership": draw(st.sampled_from(_MEMBERSHIPS))}
        return room.event("m.room.member", content, sender, draw(st.sampled_from(USERS)))
    if kind == "visibility":
        content = {"history_visibility": draw(st.sampled_from(_VISIBILITIES))}
        return room.event("m.room.history_visibility", content, sender, "")
    if kind == "other":
        other = draw(st.sampled_from(["m.room.aliases", "org.matrix.dummy_event", "m.room.topic"]))
        key = None if other == "org.matrix.dummy_event" else ""
        return room.event(other, {}, sender, key)
    return room.event("m.room.message", {}, sender)


def _merged(draw: Any, prevs: list[WrittenEvent], outliers: list[Event]) -> State:
    """A state of entries of several states, as a resolution may give."""
    states = [each.after for each in prevs]
    keys: list[StateKey] = sorted({key for state in states for key in state})
    found: dict[StateKey, Event] = {}
    for key in keys:
        entry = draw(st.sampled_from(states)).get(key)
        if entry is not None:
            found[key] = entry
    for event in outliers:
        if event.state_key is not None and draw(st.integers(0, 7)) == 0:
            found[event.type, event.state_key] = event
    return found


@st.composite
def random_rooms(draw: Any, most: int = 25) -> WrittenRoom:
    """Rooms of up to ``most`` events."""
    room = WrittenRoom(first_number=draw(st.sampled_from([1, 1_000])))
    placed: list[WrittenEvent] = []
    outliers: list[Event] = []
    ends: list[WrittenEvent] = []
    if draw(st.integers(0, 3)):
        content = {"history_visibility": draw(st.sampled_from(["joined", "joined", "invited"]))}
        event = room.event("m.room.history_visibility", content, USERS[0], "")
        ends.append(room.add(event))
        placed += ends
    for _ in range(draw(st.integers(1, most))):
        how = draw(st.sampled_from(["follow"] * 6 + ["fork"] * 2 + ["merge", "outlier", "history"]))
        event = _new_event(draw, room)
        if how == "outlier":
            outliers.append(room.outlier(event).event)
            continue
        flags = draw(st.sampled_from([0] * 8 + [2, 4]))
        lie = draw(st.sampled_from([None] * 9 + [1, 3, 40]))
        if how == "history" or not placed:
            state = (
                _merged(
                    draw,
                    draw(st.lists(st.sampled_from(placed), max_size=2)) if placed else [],
                    outliers,
                )
                if placed
                else {}
            )
            added = room.add(
                event, before=state, flags=flags, backfilled=bool(placed), topological=lie
            )
        elif how == "merge" and len(ends) > 1:
            added = room.add(
                event, *ends, before=_merged(draw, ends, outliers), flags=flags, topological=lie
            )
            ends.clear()
        else:
            prev = (
                draw(st.sampled_from(placed))
                if how == "fork" or not ends
                else draw(st.sampled_from(ends))
            )
            added = room.add(event, prev, flags=flags, topological=lie)
            if prev in ends:
                ends.remove(prev)
        placed.append(added)
        ends.append(added)
    for each in placed:
        if draw(st.integers(0, 9)) == 0:
            each.redacted_by = placed[0].number
    return room
