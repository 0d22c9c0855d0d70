"""Names that the rules know: types of events, keys of the state that authorises events, and one key of their contents.

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

#: A server's own aliases of the room, in versions up to 5.
ALIASES: Final = "m.room.aliases"

#: Made by a server to join branches of the graph; says nothing.
DUMMY: Final = "org.matrix.dummy_event"

#: In the content of an ``m.room.member``: who vouches for somebody who joins without an invite.
AUTHORISING_USER: Final = "join_authorised_via_users_server"

CREATE_KEY: Final[tuple[str, str]] = (CREATE, "")
JOIN_RULES_KEY: Final[tuple[str, str]] = (JOIN_RULES, "")
POWER_LEVELS_KEY: Final[tuple[str, str]] = (POWER_LEVELS, "")
