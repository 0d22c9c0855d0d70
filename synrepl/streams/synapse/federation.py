"""What a federation sender in another process is to send; kept in memory.

Real servers send rows again; to send twice is harmless, so all are applied.
"""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Stream
from synrepl.streams.row import Json, Row


class FederationRow(Row, frozen=True):
    """Something to send to other servers.

    :ivar type: short word for the kind of ``data`` (``p``, ``pd``, ``k``, ``e``, …)
    """

    type: str
    data: Json


FEDERATION = Stream("federation", {UNTAGGED: FederationRow}, in_memory=True, unordered=True)
