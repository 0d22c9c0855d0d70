"""The types of state that authorise events.

Source: https://spec.matrix.org/v1.16/server-server-api/#auth-events-selection
"""

from __future__ import annotations

from typing import Final

from synrepl.rooms.event import CREATE
from synrepl.rooms.state import StateKey

MEMBER: Final = "m.room.member"
THIRD_PARTY_INVITE: Final = "m.room.third_party_invite"

CREATE_KEY: Final[StateKey] = (CREATE, "")
JOIN_RULES_KEY: Final[StateKey] = ("m.room.join_rules", "")
POWER_LEVELS_KEY: Final[StateKey] = ("m.room.power_levels", "")

#: Of an ``m.room.member``: who vouches for somebody who joins without an invite.
VOUCHER: Final = "join_authorised_via_users_server"
