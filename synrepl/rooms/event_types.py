"""Event types and state keys that the rules refer to, and one content key.

Sources: https://spec.matrix.org/v1.16/client-server-api/#room-events and
https://spec.matrix.org/v1.16/server-server-api/#auth-events-selection.
"""

from __future__ import annotations

from typing import Final

CREATE: Final = "m.room.create"
MEMBER: Final = "m.room.member"
JOIN_RULES: Final = "m.room.join_rules"
POWER_LEVELS: Final = "m.room.power_levels"
THIRD_PARTY_INVITE: Final = "m.room.third_party_invite"
HISTORY_VISIBILITY: Final = "m.room.history_visibility"
REDACTION: Final = "m.room.redaction"

#: The room aliases of one server; has an auth rule in versions up to 5.
ALIASES: Final = "m.room.aliases"

#: Sent by Synapse to merge forward extremities; has no content.
DUMMY: Final = "org.matrix.dummy_event"

#: Content key of an ``m.room.member``: the member who authorises a restricted join.
AUTHORISING_USER: Final = "join_authorised_via_users_server"

CREATE_KEY: Final[tuple[str, str]] = (CREATE, "")
JOIN_RULES_KEY: Final[tuple[str, str]] = (JOIN_RULES, "")
POWER_LEVELS_KEY: Final[tuple[str, str]] = (POWER_LEVELS, "")
