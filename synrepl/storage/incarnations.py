"""Incarnations of the database's server, and what its failovers have lost.

A standby that is promoted, or a dump that is restored, may lack commits. Such a server refuses to
give out tokens until it is confirmed (``docs/adr/0019-server-incarnations.md``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import msgspec

from synrepl.core.tokens import Range, Token
from synrepl.storage.database import Transaction
from synrepl.storage.sql import value

#: Positions by writer, by stream.
Announced = Mapping[str, Mapping[str, Token]]

#: How far beyond everything known a failover moves a stream on, as in migration 0009.
MARGIN = 10**9

CONFIRMED = "SELECT synrepl.confirmed_incarnation()"

LOST_SINCE = """
    SELECT stream, writer, min(kept), max(floor) FROM synrepl._lost_ranges
    WHERE incarnation > %s GROUP BY stream, writer
"""

TOLD = """
    INSERT INTO synrepl._losses_told (follower, handler, stream, writer, lost_after, lost_upto)
    VALUES %s
"""

_HISTORY = """
    SELECT number, timeline, confirmed_at, confirmed_by FROM synrepl._incarnations
    WHERE number > 1 ORDER BY number DESC LIMIT %s
"""


@dataclass(frozen=True, slots=True)
class Failover:
    """A confirmed incarnation that followed another one."""

    number: int
    timeline: str
    confirmed_at: datetime
    confirmed_by: str


class Losses:
    """What failovers may have lost, by stream and writer."""

    def __init__(self, found: Mapping[tuple[str, str], Range]) -> None:
        self._found = found

    def of(self, stream: str, writer: str) -> Range | None:
        """The tokens of a writer that may be lost; None when nothing of the stream is.

        :param writer: "" for the linear view. A writer that is not known has lost everything
            above the linear position that has survived
        """
        return self._found.get((stream, writer)) or self._found.get((stream, ""))


def confirmed(txn: Transaction) -> int:
    """The number of the server's incarnation.

    :raises NotConfirmed: the server was promoted or restored, and is not confirmed yet
    """
    return int(value(txn, CONFIRMED))


def confirm(txn: Transaction, by: str, announced: Announced) -> int:
    """Confirm the server, unless it is confirmed.

    :param by: who does, for a person
    :param announced: how far writers are known to have been announced
    :returns: the number of its incarnation
    """
    encoded = msgspec.json.encode(announced).decode()
    return int(value(txn, "SELECT synrepl.confirm(%s, %s::jsonb)", (by, encoded)))


def lost_since(txn: Transaction, number: int) -> Losses:
    """What failovers after incarnation ``number`` may have lost."""
    txn.execute(LOST_SINCE, (number,))
    return Losses(
        {
            (str(stream), str(writer)): Range(int(kept), int(floor) - 1)
            for stream, writer, kept, floor in txn.fetchall()
        }
    )


def failovers(txn: Transaction, limit: int) -> list[Failover]:
    """The last failovers, newest first."""
    txn.execute(_HISTORY, (limit,))
    return [Failover(int(n), str(line), at, str(by)) for n, line, at, by in txn.fetchall()]
