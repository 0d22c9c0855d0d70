"""The keys of the state that authorises events.

Source: https://spec.matrix.org/v1.16/server-server-api/#auth-events-selection
"""

from __future__ import annotations

from typing import Final

from synrepl.rooms.event_types import CREATE, JOIN_RULES, POWER_LEVELS
from synrepl.rooms.state import StateKey

CREATE_KEY: Final[StateKey] = (CREATE, "")
JOIN_RULES_KEY: Final[StateKey] = (JOIN_RULES, "")
POWER_LEVELS_KEY: Final[StateKey] = (POWER_LEVELS, "")
