"""The servers that an event is sent to: those that were in the room before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from synrepl.rooms import server_of
from synrepl.storage.database import Transaction
from synrepl.storage.federation.outgoing_events import ToSend
from synrepl.storage.federation.room_servers import (
    ServersAtState,
    current_groups,
    current_servers,
    servers_at,
)
from synrepl.storage.rooms.tables.partial_rooms import servers_at_join


class EventServers(NamedTuple):
    """The servers that an event is sent to.

    :ivar in_room: those in the room before it; the same object for events of the same state. This server may be among them
    :ivar besides: further ones
    :ivar except_for: one of them that has the event already
    """

    stream_id: int
    room_no: int
    in_room: frozenset[str]
    besides: frozenset[str]
    except_for: str | None


def event_servers(
    txn: Transaction, events: Sequence[ToSend], known: Mapping[int, ServersAtState], own: str
) -> tuple[Sequence[EventServers], Mapping[int, ServersAtState]]:
    """The servers that events are sent to.

    An event goes to the servers in the room before it, as of the state after its prev events. One that ends an
    invite or a knock goes to the user's server, too. Source: seed "How do faster joins work?", "Sending out the event
    over federation": where that state is partial, events of this server's users go to the servers that were in the room
    before the join and to those that joined since, and events of others, which this server let in, to none.

    :param known: servers in rooms that were found before
    :param own: the name of this server
    :returns: those of each event, and the servers in rooms that were found now
    """
    found = _valid(txn, {each.room_no for each in events}, known)
    at_join: dict[int, frozenset[str]] = {}
    results: list[EventServers] = []
    for each in events:
        servers = _servers(txn, each, found)
        if servers is None:  # the room was purged or removed
            continue
        found[each.room_no] = servers
        origin = server_of(each.sender)
        names, besides = servers.names, frozenset[str]()
        if each.is_partial:
            if origin != own:
                continue
            if each.room_no not in at_join:
                at_join[each.room_no] = servers_at_join(txn, each.room_no)
            besides = at_join[each.room_no] - names
        if each.removed is not None:
            besides = (besides | {server_of(each.removed)}) - names
        results.append(
            EventServers(
                each.stream_id, each.room_no, names, besides, None if origin == own else origin
            )
        )
    return results, found


def _valid(
    txn: Transaction, room_nos: set[int], known: Mapping[int, ServersAtState]
) -> dict[int, ServersAtState]:
    """What is known of rooms and still counts; of the others, their current servers."""
    epochs = current_groups(txn, room_nos)
    found = {
        room_no: known[room_no]
        for room_no, (epoch, _) in epochs.items()
        if room_no in known and known[room_no].epoch == epoch
    }
    return found | current_servers(txn, epochs.keys() - found.keys())


def _servers(
    txn: Transaction, event: ToSend, found: Mapping[int, ServersAtState]
) -> ServersAtState | None:
    known = found.get(event.room_no)
    if known is None:
        return None
    servers = servers_at(txn, known, event.group_before)
    if servers is None:  # the state from which it was counted is gone
        current = current_servers(txn, [event.room_no]).get(event.room_no)
        servers = None if current is None else servers_at(txn, current, event.group_before)
    return servers
