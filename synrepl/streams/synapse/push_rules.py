"""Changes to users' push rules."""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Stream
from synrepl.streams.effects import Invalidates, Marks, columns_key, entity
from synrepl.streams.row import Row


class PushRulesRow(Row, frozen=True):
    """A user's push rules have changed."""

    user_id: str


PUSH_RULES = Stream(
    "push_rules",
    {UNTAGGED: PushRulesRow},
    effects={
        PushRulesRow: (
            Invalidates("get_push_rules_for_user", columns_key("user_id")),
            Marks("push_rules", entity("user_id")),
        )
    },
)
