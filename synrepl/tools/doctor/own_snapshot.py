"""Observes synrepl's own database, in one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from synrepl.core.tokens import Token
from synrepl.services.status.follower_lag import FollowerLag, StreamPositions, follower_lags
from synrepl.storage import incarnations, migrations, writers
from synrepl.storage.database import Transaction
from synrepl.storage.federation.destination_overview import SendingFigures, sending_figures
from synrepl.storage.followers import named_followers
from synrepl.storage.incarnations import Failover, MayBeLost, ServerLook
from synrepl.storage.store import NamedFollower, Observation
from synrepl.storage.tables import table_name
from synrepl.streams.definition import UNTAGGED, Stream
from synrepl.streams.row import Row
from synrepl.tools.doctor import sessions
from synrepl.tools.doctor.durability import Durability, durability
from synrepl.tools.doctor.sessions import OpenSession

#: Destinations that are looked at.
_DESTINATIONS = 100

#: Lock timeout of the examination, in ms.
_LOCK_MS = 10_000


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """The observed state of one stream.

    :ivar highest: the largest token in the table; 0 while the table is locked exclusively
    :ivar seen: its sequence, positions, writers and trimmed token
    """

    highest: Token
    seen: Observation

    @property
    def recorded(self) -> Token:
        """The largest recorded position."""
        positions = (writer.position for writer in self.seen.writers.values())
        return max(self.seen.recorded, self.seen.trimmed, *positions)

    @property
    def allocated_upto(self) -> Token:
        """The largest token that can have been allocated."""
        return max(self.seen.last, self.highest, self.recorded)

    @property
    def is_sequence_behind(self) -> bool:
        """Whether the sequence is behind the table or a position."""
        return self.seen.last < max(self.highest, self.recorded)

    @property
    def dead_writers(self) -> list[str]:
        """Writers that died and have not been fenced."""
        states = self.seen.writers.items()
        return sorted(name for name, state in states if state.is_held and not state.is_alive)


@dataclass(frozen=True, slots=True)
class OwnSnapshot:
    """The observed state of the database.

    :ivar pending: migrations that are not applied; if one of them is a ``pre`` migration, nothing
        else was observed
    :ivar followers: the recorded followers by name
    :ivar oldest_key_s: age of the oldest idempotency key in seconds; None without keys
    :ivar unreadable: streams whose tables this user may not read
    :ivar server: whether the server was confirmed; None if that is not recorded
    :ivar failovers: the latest ones, newest first
    :ivar lost: the facts that these failovers may have lost
    :ivar durability: None if only the migrations were observed
    :ivar sending: how sending to other servers is going; None if nobody has ever sent anything
    """

    pending: tuple[migrations.Migration, ...]
    streams: Mapping[str, StreamSnapshot]
    sessions: Mapping[int, OpenSession]
    followers: Mapping[str, NamedFollower]
    oldest_key_s: float | None
    unreadable: tuple[str, ...] = ()
    server: ServerLook | None = None
    failovers: Sequence[Failover] = ()
    lost: Sequence[MayBeLost] = ()
    durability: Durability | None = None
    sending: SendingFigures | None = None

    @property
    def leases(self) -> dict[str, float]:
        """Seconds until the lease of each follower ends; negative if it has expired."""
        named = self.followers.items()
        return {name: one.lease_s for name, one in named if one.lease_s is not None}

    def lags(self, follower: NamedFollower) -> Iterator[FollowerLag]:
        """The lags of a follower by its recorded positions."""
        positions = {
            name: StreamPositions(
                stream.seen.recorded,
                {writer: state.position for writer, state in stream.seen.writers.items()},
                stream.seen.trimmed,
                stream.seen.floor,
                {each.writer: each.kept for each in reversed(self.lost) if each.stream == name},
            )
            for name, stream in self.streams.items()
        }
        return follower_lags(follower, positions)

    def holders(self, stream: str) -> list[tuple[str, OpenSession]]:
        """The sessions that hold a stream, with their writer names, the oldest first."""
        held = [
            (writer, session)
            for writer, state in sorted(self.streams[stream].seen.writers.items())
            for holder in state.holders
            if (session := self.sessions.get(int(str(holder.identity[0])))) is not None
        ]
        return sorted(held, key=lambda pair: pair[1].age_s or 0.0, reverse=True)


class AheadFollower(NamedTuple):
    """A position of a follower beyond the last allocated token.

    :ivar handler: the handler with this position; None for the follower's own position
    :ivar bound: the last allocated token
    """

    follower: str
    stream: str
    writer: str
    handler: str | None
    position: Token
    bound: Token


def ahead(snapshot: OwnSnapshot) -> Iterator[AheadFollower]:
    """Find positions of followers and handlers beyond the last allocated token."""
    for name, follower in snapshot.followers.items():
        positions = [(None, *key, at) for key, at in follower.positions.items()]
        handlers = [(*place, at) for place, at in follower.handlers.items()]
        for handler, stream, writer, position in (*positions, *handlers):
            seen = snapshot.streams.get(stream)
            if seen is not None and position > seen.allocated_upto:
                yield AheadFollower(name, stream, writer, handler, position, seen.allocated_upto)


class _Unread(Row, frozen=True):
    """The row type of all streams: their rows are not read here."""


def streams_of(txn: Transaction) -> list[Stream]:
    """The streams that have tables, with their numbering only; needs no configuration."""
    txn.execute("SELECT stream, counts_down, sequence FROM synrepl._streams ORDER BY stream")
    found = []
    for name, counts_down, sequence in txn.fetchall():
        owner = str(sequence).removeprefix('synrepl."_').removesuffix('_seq"')
        found.append(
            Stream(
                str(name),
                {UNTAGGED: _Unread},
                counts_down=bool(counts_down),
                numbered_with=None if owner == name else owner,
            )
        )
    return found


def take_snapshot(txn: Transaction, failover_days: float = 30.0) -> OwnSnapshot:
    """Observe everything.

    The transaction must use one snapshot for all statements. Sequences are not part of a snapshot,
    so their values are never older than the contents of the tables.

    :param failover_days: maximum age of the failovers
    :raises SynreplError: any error of :func:`.migrations.pending`
    """
    txn.execute("SELECT set_config('lock_timeout', %s, true)", (str(_LOCK_MS),))
    pending = migrations.pending(txn, migrations.load())
    if any(each.phase is migrations.MigrationPhase.PRE for each in pending):
        return OwnSnapshot(pending, {}, {}, {}, None)
    streams = streams_of(txn)
    # Reading a locked table would block.
    skipped = {table for each in sessions.open_sessions(txn).values() for table in each.locked}
    unreadable = _unreadable(txn, streams)
    skipped |= set(unreadable)
    highest = {each.name: _highest(txn, each) for each in streams if each.name not in skipped}
    seen = writers.observe(txn, streams)
    failovers = incarnations.failovers(txn, failover_days)
    return OwnSnapshot(
        pending,
        {name: StreamSnapshot(highest.get(name, 0), each) for name, each in seen.items()},
        sessions.open_sessions(txn),
        {one.name: one for one in named_followers.named(txn)},
        _oldest_key(txn),
        unreadable,
        incarnations.server(txn),
        failovers,
        incarnations.may_be_lost(txn, [each.number for each in failovers]),
        durability(txn),
        sending_figures(txn, _DESTINATIONS),
    )


def _unreadable(txn: Transaction, streams: Sequence[Stream]) -> tuple[str, ...]:
    names = [stream.name for stream in streams]
    txn.execute(
        "SELECT name FROM unnest(%s) AS name"
        " WHERE NOT has_table_privilege('synrepl.' || quote_ident(name), 'SELECT') ORDER BY name",
        (names,),
    )
    return tuple(str(name) for (name,) in txn.fetchall())


def _highest(txn: Transaction, stream: Stream) -> Token:
    edge = "-min(stream_id)" if stream.counts_down else "max(stream_id)"
    return int(txn.execute(f"SELECT coalesce({edge}, 0) FROM {table_name(stream)}").fetchone()[0])


def _oldest_key(txn: Transaction) -> float | None:
    txn.execute(
        "SELECT extract(epoch FROM clock_timestamp() - min(created_at))::float8"
        " FROM synrepl._idempotency_keys"
    )
    age = txn.fetchone()[0]
    return None if age is None else float(age)
