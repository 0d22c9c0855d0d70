"""Checks what followers hear of changes of the current state: change marks, and invalidations of caches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulator.rooms.room_model import StateChanges
from synrepl.streams.synapse.caches import CachesRow
from synrepl.streams.synapse.events import AllStateRow, StateRow

#: The caches of a room's current state, as other processes call them.
STATE_CACHE = "cs_cache_fake"


def wrong_marks(
    room_id: str,
    batches: Sequence[StateChanges],
    heard: Sequence[StateRow | AllStateRow],
    all_state_rows: int,
) -> Iterator[str]:
    """What is wrong with the change marks of a room: each change of each batch has one, in the order of the batches.

    :param batches: what each batch changed
    :param heard: the marks that a follower has heard of, in the order of their tokens
    :param all_state_rows: the number of changes from which on there is one mark for all of them
    """
    at = 0
    for number, changes in enumerate(batches, 1):
        expected: list[StateRow | AllStateRow] = [
            StateRow(room_id, *key, event_id) for key, event_id in changes.items()
        ]
        if len(changes) >= all_state_rows:
            expected = [AllStateRow(room_id)]
        found = heard[at : at + len(expected)]
        at += len(expected)
        if _sorted(found) != _sorted(expected):
            yield f"batch {number} of {room_id}: {found} instead of {expected}"
            return  # the marks of the next batches are not where they should be
    if heard[at:]:
        yield f"{room_id}: {heard[at:]} belong to no batch"


def wrong_invalidations(
    room_id: str, batches: Sequence[StateChanges], heard: Sequence[CachesRow]
) -> Iterator[str]:
    """What is wrong with the invalidations of a room: each batch that changes the state has one.

    It names the room and the users whose memberships changed.

    :param batches: what each batch changed
    :param heard: the invalidations that a follower has heard of, in the order of their tokens
    """
    expected = [
        (STATE_CACHE, [room_id, *sorted(user for kind, user in changes if kind == "m.room.member")])
        for changes in batches
    ]
    found = []
    for row in heard:
        room, *users = map(str, row.keys or ())
        found.append((row.cache_func, [room, *sorted(users)]))
    if found == expected:
        return
    same = next(
        (at for at, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]),
        min(len(found), len(expected)),
    )
    yield (
        f"batch {same + 1} of {room_id}: {found[same : same + 1]} instead of"
        f" {expected[same : same + 1]}, {len(found)} of {len(expected)} in all"
    )


def _sorted(rows: Sequence[StateRow | AllStateRow]) -> list[str]:
    return sorted(map(repr, rows))
