"""Lookups in a database, at the snapshot that the driver holds, over one connection for each process."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

from synrepl.driver.held_snapshot import JoinedSnapshot
from synrepl.pipeline.rooms.lookup import FoundEvent, FoundGroup, FoundPlace, RoomLookup
from synrepl.rooms import Keys, StateKey
from synrepl.storage.database import Transaction
from synrepl.storage.federation.server_keys import read_keys
from synrepl.storage.foreign.rooms.events import event_places, known_events
from synrepl.storage.foreign.rooms.keys import server_keys
from synrepl.storage.foreign.rooms.states import (
    backward_extremities,
    group_entries,
    read_group_chains,
)
from synrepl.storage.rooms.states.state_groups import read_chains
from synrepl.storage.rooms.tables.events import EventFlags

#: Groups of a chain that are followed, on average. Synapse's have a hundred, the compressor's fewer.
_MAX_CHAIN = 2_000


class DatabaseLookup(NamedTuple):
    """Opens lookups in one database; implements :class:`.LookupSource`.

    :ivar snapshot: the name of an exported snapshot
    :ivar is_own: synrepl's own database, not a Synapse's
    """

    dsn: str
    snapshot: str
    is_own: bool

    def open(self) -> RoomLookup:
        """The lookup of this process.

        :raises DatabaseAway: :raises DatabaseRefused: :raises QueryFailed: the snapshot is not held any more
        """
        return _opened(self)


@lru_cache(maxsize=1)
def _opened(source: DatabaseLookup) -> RoomLookup:
    joined = JoinedSnapshot(source.dsn, "rooms", source.snapshot)
    return OwnLookup(joined) if source.is_own else SynapseLookup(joined)


class SynapseLookup:
    """Looks up in a real Synapse's database."""

    def __init__(self, snapshot: JoinedSnapshot) -> None:
        self._snapshot = snapshot

    def events(self, room_id: str, event_ids: Collection[str]) -> list[FoundEvent]:
        """See :class:`.RoomLookup`."""
        return [FoundEvent(*row) for row in known_events(self._snapshot.txn, room_id, event_ids)]

    def places(self, room_id: str, event_ids: Collection[str]) -> list[FoundPlace]:
        """See :class:`.RoomLookup`."""
        return [FoundPlace(*row) for row in event_places(self._snapshot.txn, room_id, event_ids)]

    def chains(
        self, room_id: str, groups: Collection[int], known: Collection[int]
    ) -> dict[int, FoundGroup]:
        """See :class:`.RoomLookup`."""
        txn = self._snapshot.txn
        stored = read_group_chains(txn, groups, known, _MAX_CHAIN * len(groups))
        entries = dict(group_entries(txn, stored))
        return {
            group: FoundGroup(each.room_id, each.prev, entries.get(group, {}))
            for group, each in stored.items()
        }

    def known_missing(self, room_id: str, event_ids: Collection[str]) -> set[str]:
        """See :class:`.RoomLookup`."""
        return backward_extremities(self._snapshot.txn, room_id, event_ids)

    def keys(self, servers: Collection[str]) -> Keys:
        """See :class:`.RoomLookup`; a Synapse does not store its own keys."""
        return server_keys(self._snapshot.txn, servers)


class OwnLookup:
    """Looks up in synrepl's own database."""

    def __init__(self, snapshot: JoinedSnapshot) -> None:
        self._snapshot = snapshot
        self._room = ("", 0)

    def events(self, room_id: str, event_ids: Collection[str]) -> list[FoundEvent]:
        """See :class:`.RoomLookup`."""
        self._txn.execute(
            f"SELECT e.event_id, j.raw, e.flags & {int(EventFlags.REJECTED)} <> 0"
            " FROM synrepl._room_events e JOIN synrepl._room_event_json j USING (event_no)"
            " WHERE e.event_id = ANY (%s::text[]) AND e.room_no = %s",
            (list(event_ids), self._room_no(room_id)),
        )
        return [FoundEvent(*row) for row in self._txn.fetchall()]

    def places(self, room_id: str, event_ids: Collection[str]) -> list[FoundPlace]:
        """See :class:`.RoomLookup`."""
        self._txn.execute(
            "SELECT event_id, topological, group_after FROM synrepl._room_events"
            " WHERE event_id = ANY (%s::text[]) AND room_no = %s AND group_after IS NOT NULL",
            (list(event_ids), self._room_no(room_id)),
        )
        return [FoundPlace(*row) for row in self._txn.fetchall()]

    def chains(
        self, room_id: str, groups: Collection[int], known: Collection[int]
    ) -> dict[int, FoundGroup]:
        """See :class:`.RoomLookup`."""
        room_no = self._room_no(room_id)
        stored = read_chains(self._txn, room_no, groups, known)
        slots = {slot for group in stored.values() for slot in group.changes}
        numbers = {no for group in stored.values() for no in group.changes.values() if no}
        self._txn.execute(
            "SELECT slot, type, state_key FROM synrepl._room_keys"
            " WHERE room_no = %s AND slot = ANY (%s::int[])",
            (room_no, list(slots)),
        )
        keys: dict[int, StateKey] = {slot: (kind, key) for slot, kind, key in self._txn.fetchall()}
        self._txn.execute(
            "SELECT event_no, event_id FROM synrepl._room_events"
            " WHERE event_no = ANY (%s::bigint[])",
            (list(numbers),),
        )
        ids: dict[int, str] = dict(self._txn.fetchall())
        return {
            group: FoundGroup(
                room_id,
                each.prev_group,
                {
                    # What is not there must not look like an entry that is removed.
                    keys.get(slot, ("missing slot", str(slot))): None
                    if number is None
                    else ids.get(number, f"missing event number {number}")
                    for slot, number in each.changes.items()
                },
            )
            for group, each in stored.items()
        }

    def known_missing(self, room_id: str, event_ids: Collection[str]) -> set[str]:
        """See :class:`.RoomLookup`."""
        self._txn.execute(
            "SELECT missing_id FROM synrepl._backward_extremities"
            " WHERE room_no = %s AND missing_id = ANY (%s::text[])",
            (self._room_no(room_id), list(event_ids)),
        )
        return {str(event_id) for (event_id,) in self._txn.fetchall()}

    def keys(self, servers: Collection[str]) -> Keys:
        """See :class:`.RoomLookup`."""
        return {
            server: {key_id: known.key for key_id, known in keys.items()}
            for server, keys in read_keys(self._txn, servers).items()
        }

    @property
    def _txn(self) -> Transaction:
        return self._snapshot.txn

    def _room_no(self, room_id: str) -> int:
        if self._room[0] != room_id:
            self._txn.execute("SELECT room_no FROM synrepl._rooms WHERE room_id = %s", (room_id,))
            row = self._txn.fetchone_or_none()
            self._room = (room_id, 0 if row is None else row[0])
        return self._room[1]
