"""Data for a federation sender in another process; kept in memory.

Real servers repeat rows. Sending twice is harmless, so all are applied.
"""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Stream
from synrepl.streams.row import Json, Row


class FederationRow(Row, frozen=True):
    """Data to send to other servers.

    :ivar type: short word for the kind of ``data`` (``p``, ``pd``, ``k``, ``e``, …)
    """

    type: str
    data: Json


FEDERATION = Stream("federation", {UNTAGGED: FederationRow}, in_memory=True, unordered=True)
