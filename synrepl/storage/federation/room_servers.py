"""The servers that are in a room, as of any of its states, from the difference to a state of which they are known.

A room may have a hundred thousand members, whose servers take a while to count. States that follow one another differ in
a few of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from synrepl.storage.database import PlannedOnce, Script, Transaction
from synrepl.storage.rooms.states.state_groups import unpacked_changes
from synrepl.storage.rooms.states.state_line import look_up, read_lines, read_places
from synrepl.storage.rooms.tables.numbers import room_by_number
from synrepl.storage.rooms.tables.pending_rows import array_text
from synrepl.storage.rooms.visibility.audience import JOIN, SETS_SHIFT


class ServersAtState(NamedTuple):
    """The servers in a room at one of its states.

    :ivar epoch: of the room, for which ``group`` is valid
    :ivar group: the state
    :ivar users: by server, the number of its users in the room
    :ivar names: the servers
    """

    room_no: int
    epoch: int
    group: int
    users: Mapping[str, int]
    names: frozenset[str]


def current_servers(txn: Transaction, room_nos: Collection[int]) -> dict[int, ServersAtState]:
    """The servers in rooms by their current state; rooms without events are left out."""
    if not room_nos:
        return {}
    # One statement, so that the members are those of the state.
    txn.execute(
        "SELECT h.room_no, r.epoch, h.current_group, s.server, s.users FROM synrepl._room_heads h"
        " JOIN synrepl._rooms r USING (room_no) LEFT JOIN LATERAL ("
        "  SELECT substr(m.user_id, strpos(m.user_id, ':') + 1) AS server, count(*) AS users"
        "  FROM synrepl._memberships m WHERE m.room_no = h.room_no AND m.membership = 'join' GROUP BY 1"
        " ) AS s ON true WHERE h.room_no = ANY (%s::int[])",
        (array_text(room_nos),),
    )
    states: dict[int, tuple[int, int]] = {}
    users: dict[int, dict[str, int]] = {}
    for room_no, epoch, group, server, count in txn.fetchall():
        states[room_no] = epoch, group
        members = users.setdefault(room_no, {})
        if server is not None:
            members[str(server)] = int(count)
    return {
        room_no: ServersAtState(room_no, *state, users[room_no], frozenset(users[room_no]))
        for room_no, state in states.items()
    }


def current_groups(txn: Transaction, room_nos: Collection[int]) -> dict[int, tuple[int, int]]:
    """The epoch of each room, and the group of its current state."""
    txn.execute(
        "SELECT h.room_no, r.epoch, h.current_group FROM synrepl._room_heads h"
        " JOIN synrepl._rooms r USING (room_no) WHERE h.room_no = ANY (%s::int[])",
        (array_text(room_nos),),
    )
    return {room_no: (epoch, group) for room_no, epoch, group in txn.fetchall()}


def servers_at(txn: Transaction, known: ServersAtState, group: int) -> ServersAtState | None:
    """The servers in a room at another of its states, which is of the same epoch.

    :returns: None if one of the states is not here any more
    :raises NumberWithoutRow: the line of a state is not here
    """
    if group == known.group:
        return known
    slots = _differing_slots(txn, known.room_no, known.group, group)
    if slots is None:
        return None
    changes = _membership_changes(txn, known.room_no, known.group, group, slots)
    users = Counter(known.users)
    for server, change in changes.items():
        users[server] += change
    left = {server: count for server, count in users.items() if count > 0}
    names = known.names if left.keys() == known.names else frozenset(left)
    return ServersAtState(known.room_no, known.epoch, group, left, names)


def _membership_changes(
    txn: Transaction, room_no: int, older: int, newer: int, slots: Collection[int]
) -> Mapping[str, int]:
    """By server, how many more of its users are in the room at the newer state.

    :param slots: in which the two may differ
    """
    txn.execute(
        "SELECT slot, substr(state_key, strpos(state_key, ':') + 1) FROM synrepl._room_keys"
        " WHERE room_no = %s AND slot = ANY (%s::int[]) AND type = 'm.room.member'",
        (room_no, array_text(slots)),
    )
    servers: dict[int, str] = dict(txn.fetchall())
    if not servers:
        return {}
    room = room_by_number(txn, room_no)
    places = read_places(txn, room, [older, newer])
    lines = read_lines(txn, {place.line_no for place in places.values()})
    before = look_up(txn, [(places[older], slot) for slot in servers], lines)
    after = look_up(txn, [(places[newer], slot) for slot in servers], lines)
    joins = _joins(txn, {each for each in (*before, *after) if each is not None})
    changes: Counter[str] = Counter()
    for server, was, now in zip(servers.values(), before, after, strict=True):
        changes[server] += (now in joins) - (was in joins)
    return changes


_CHAINS = Script(
    [
        PlannedOnce(
            "WITH RECURSIVE chain (start, group_no, prev_group, place) AS ("
            " SELECT group_no, group_no, prev_group, place FROM synrepl._state_groups"
            "  WHERE room_no = %(room)s AND group_no IN (%(one)s, %(other)s)"
            " UNION ALL SELECT c.start, g.group_no, g.prev_group, g.place FROM chain c CROSS JOIN LATERAL ("
            "  SELECT g.group_no, g.prev_group, g.place FROM synrepl._state_groups g"
            "  WHERE g.room_no = %(room)s AND g.group_no = c.prev_group OFFSET 0) AS g"
            "  WHERE g.place < c.place)"
            " SELECT start, group_no FROM chain"
        )
    ]
)


def _differing_slots(txn: Transaction, room_no: int, one: int, other: int) -> set[int] | None:
    """The slots in which two states may differ: those that the parts of their chains have which they do not share.

    None if one of the states is not here.
    """
    txn.execute(_CHAINS, {"room": room_no, "one": one, "other": other})
    chains: dict[int, set[int]] = {one: set(), other: set()}
    for start, group in txn.fetchall():
        chains[start].add(group)
    if not all(chains.values()):
        return None
    txn.execute(
        "SELECT changes FROM synrepl._state_groups WHERE room_no = %s AND group_no = ANY (%s::bigint[])",
        (room_no, array_text(chains[one] ^ chains[other])),
    )
    slots: set[int] = set()
    for (packed,) in txn.fetchall():
        slots.update(unpacked_changes(packed))
    return slots


def _joins(txn: Transaction, event_nos: Collection[int]) -> frozenset[int]:
    """Those of some events that set a membership to ``join``."""
    txn.execute(
        f"SELECT event_no FROM synrepl._room_events WHERE event_no = ANY (%s::bigint[])"
        f" AND (audience >> {SETS_SHIFT}) & 7 = {JOIN}",
        (array_text(event_nos),),
    )
    return frozenset(number for (number,) in txn.fetchall())
