"""Changes to users' push rules."""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Stream
from synrepl.streams.row import Row


class PushRulesRow(Row, frozen=True):
    """A user's push rules have changed."""

    user_id: str


PUSH_RULES = Stream("push_rules", {UNTAGGED: PushRulesRow})
