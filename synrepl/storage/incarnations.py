"""Incarnations of the database's server, and the facts that its failovers lost.

A promoted standby or a restored dump may lack commits. Such a server refuses to
give out tokens until it is confirmed (``docs/adr/0019-server-incarnations.md``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Lock

import msgspec

from synrepl.core.tokens import Range, Token
from synrepl.positions.vector import PositionVector
from synrepl.storage.database import Transaction, planned, value
from synrepl.storage.store import NotConfirmed, OlderServer

#: Positions by stream and writer.
Announced = Mapping[str, Mapping[str, Token]]

#: Distance by which a failover advances a stream beyond every known token, as in migration 0009.
MARGIN = 10**9

#: A position this far ahead of a follower may be beyond a failover. The margin is counted from
#: tokens known to the new server and its master, and a follower may know larger ones.
JUMP = MARGIN // 2

CONFIRMED = planned("SELECT synrepl.confirmed_incarnation()")

LAST_CONFIRMED = planned("SELECT max(number) FROM synrepl._incarnations")

FLOOR = "SELECT floor FROM synrepl._streams WHERE stream = %s"

FLOORS = "SELECT stream, floor FROM synrepl._streams WHERE floor > 0"

LOST_SINCE = """
    SELECT stream, writer, min(kept), max(floor) FROM synrepl._lost_ranges
    WHERE incarnation > %s GROUP BY stream, writer
"""

NOTIFIED_HANDLERS = """
    INSERT INTO synrepl._losses_told (follower, handler, stream, writer, lost_after, lost_upto)
    VALUES %s
"""

GAPS = """
    SELECT stream, floor FROM synrepl._lost_ranges WHERE writer = '' ORDER BY stream, floor
"""

_READ = """
    SELECT number, system_identifier, timeline,
           CASE WHEN NOT pg_is_in_recovery() THEN
               left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END
    FROM synrepl._incarnations ORDER BY number DESC LIMIT 1
"""

_HISTORY = """
    SELECT number, timeline, confirmed_at, confirmed_by FROM synrepl._incarnations
    WHERE number > 1 AND confirmed_at > now() - make_interval(secs => %s * 86400)
    ORDER BY number DESC
"""

#: Only writers that had announced facts, or whose followers were notified.
_MAY_BE_LOST = """
    SELECT l.incarnation, l.stream, l.writer, l.kept, l.announced,
           (SELECT array_agg(DISTINCT t.follower || '/' || t.handler) FROM synrepl._losses_told t
            WHERE t.stream = l.stream AND t.writer = l.writer
              AND t.lost_after >= l.kept AND t.lost_upto < l.floor) AS told
    FROM synrepl._lost_ranges l WHERE l.incarnation = ANY(%s) AND (
        l.announced > l.kept OR (l.announced IS NULL AND l.writer <> '' AND l.kept > 0)
        OR EXISTS (SELECT FROM synrepl._losses_told t WHERE t.stream = l.stream
                   AND t.writer = l.writer AND t.lost_after >= l.kept AND t.lost_upto < l.floor))
    ORDER BY l.incarnation DESC, l.stream, l.writer
"""

_COMPARE = """
    SELECT i.timeline = here.timeline
           AND i.system_identifier IN ('', (SELECT system_identifier::text FROM pg_control_system())),
           here.timeline
    FROM synrepl._incarnations i,
         left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) AS here (timeline)
    ORDER BY i.number DESC LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Failover:
    """A confirmed incarnation that followed another one."""

    number: int
    timeline: str
    confirmed_at: datetime
    confirmed_by: str


@dataclass(frozen=True, slots=True)
class MayBeLost:
    """The facts of one writer that a failover may have lost.

    :ivar writer: "" for the linear view
    :ivar announced: the announced position; None if it is not known
    :ivar notified: the notified handlers, as ``follower/handler``
    """

    failover: int
    stream: str
    writer: str
    kept: Token
    announced: Token | None
    notified: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServerLook:
    """Whether this server is the confirmed one.

    :ivar timeline: of this server; None for a standby, which is never written to
    """

    is_confirmed: bool
    timeline: str | None
    confirmed_timeline: str


class Incarnations:
    """The newest incarnation that a process has seen on any of its connections."""

    def __init__(self) -> None:
        self.newest = 0
        self._lock = Lock()  # transactions run in threads

    def check(self, txn: Transaction) -> int:
        """The number of the server's incarnation.

        :raises NotConfirmed: see :func:`confirmed`
        :raises OlderServer: a newer one was seen before
        """
        return self._see(confirmed(txn))

    def check_read(self, txn: Transaction) -> None:
        """Like :meth:`check`, for reading: the server may be a standby, or not be confirmed yet.

        :raises OlderServer: a newer one was seen before, so this server is out of use
        """
        self._see(int(value(txn, LAST_CONFIRMED)))

    def _see(self, number: int) -> int:
        with self._lock:
            if number < self.newest:
                raise OlderServer(found=number, newest=self.newest)
            self.newest = number
        return number


class Losses:
    """The tokens that failovers may have lost, by stream and writer."""

    def __init__(self, found: Mapping[tuple[str, str], Range]) -> None:
        self._found = found

    def kept(self, stream: str) -> PositionVector | None:
        """The position up to which all facts of a stream survived; None if none are lost."""
        kept = {writer: at.after for (name, writer), at in self._found.items() if name == stream}
        linear = kept.pop("", None)
        return None if linear is None else PositionVector(kept, linear)

    def of(self, stream: str, writer: str) -> Range | None:
        """The tokens of a writer that may be lost; None if none of the stream are.

        :param writer: "" for the linear view. An unknown writer has lost everything above the
            surviving linear position
        """
        return self._found.get((stream, writer)) or self._found.get((stream, ""))


def confirmed(txn: Transaction) -> int:
    """The number of the server's incarnation.

    :raises NotConfirmed: the server was promoted or restored, and is not confirmed yet
    """
    return int(value(txn, CONFIRMED))


def read(txn: Transaction, system_identifier: str) -> int:
    """The number of the server's incarnation; it needs no more than the right to read the tables.

    On a standby it is that of its primary.

    :param system_identifier: of the server; "" if it may not be read
    :raises NotConfirmed: the server was promoted or restored, and is not confirmed yet
    """
    txn.execute(_READ)
    number, of, timeline, here = txn.fetchone()
    other = bool(of and system_identifier) and of != system_identifier
    if here is not None and (here != timeline or other):
        reason = f"its server was promoted or restored (timeline {here}, the last was {timeline})"
        raise NotConfirmed(reason=reason)
    return int(number)


def gaps(txn: Transaction) -> dict[str, list[Range]]:
    """By stream, the token ranges that failovers skipped; none of them was ever given out."""
    found: dict[str, list[Range]] = {}
    for stream, floor in txn.execute(GAPS).fetchall():
        found.setdefault(str(stream), []).append(Range(int(floor) - MARGIN, int(floor)))
    return found


def confirm(txn: Transaction, by: str, announced: Announced) -> int:
    """Confirm the server, unless it is confirmed.

    :param by: the confirming process or person, for messages
    :param announced: known announced positions of writers
    :returns: the number of its incarnation
    """
    encoded = msgspec.json.encode(announced).decode()
    return int(value(txn, "SELECT synrepl.confirm(%s, %s::jsonb)", (by, encoded)))


def floor(txn: Transaction, stream: str) -> Token:
    """The floor of a stream: tokens up to it belong to before the last failover; 0 without one."""
    row = txn.execute(FLOOR, (stream,)).fetchone_or_none()
    return 0 if row is None else int(row[0])


def floors(txn: Transaction) -> dict[str, Token]:
    """The floors of all streams that have one."""
    txn.execute(FLOORS)
    return {str(stream): int(at) for stream, at in txn.fetchall()}


def lost_since(txn: Transaction, number: int) -> Losses:
    """The losses of failovers after incarnation ``number``."""
    txn.execute(LOST_SINCE, (number,))
    return Losses(
        {
            (str(stream), str(writer)): Range(int(kept), int(floor) - 1)
            for stream, writer, kept, floor in txn.fetchall()
        }
    )


def server(txn: Transaction) -> ServerLook:
    """Compare the server, which may be a standby, with the confirmed one."""
    txn.execute(
        "SELECT pg_is_in_recovery(), timeline FROM synrepl._incarnations ORDER BY number DESC"
    )
    standby, confirmed_timeline = txn.fetchone()
    if standby:
        return ServerLook(True, None, str(confirmed_timeline))
    txn.execute(_COMPARE)
    is_confirmed, timeline = txn.fetchone()
    return ServerLook(bool(is_confirmed), str(timeline), str(confirmed_timeline))


def failovers(txn: Transaction, days: float) -> list[Failover]:
    """The failovers of the last days, newest first."""
    txn.execute(_HISTORY, (days,))
    return [Failover(int(n), str(line), at, str(by)) for n, line, at, by in txn.fetchall()]


def may_be_lost(txn: Transaction, numbers: Sequence[int]) -> list[MayBeLost]:
    """The likely losses of these failovers, by writer."""
    txn.execute(_MAY_BE_LOST, (list(numbers),))
    return [
        MayBeLost(
            int(number), str(stream), str(writer), int(kept), announced, tuple(notified or ())
        )
        for number, stream, writer, kept, announced, notified in txn.fetchall()
    ]
