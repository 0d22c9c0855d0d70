"""Which redactions may be, in the versions whose auth rules say.

Source: step 11 of https://spec.matrix.org/v1.16/rooms/v1/#authorization-rules
"""

from __future__ import annotations

from synrepl.rooms.auth.outcome import Refusal
from synrepl.rooms.auth.power_levels import Levels
from synrepl.rooms.auth.users import server_part
from synrepl.rooms.event import Event


def check_redaction(event: Event, levels: Levels) -> Refusal | None:
    """Step 11: it takes power, or a target of the same server."""
    if levels.of(event.sender) >= levels.redact:
        return None
    target, server = event.redacts, server_part(event.event_id)
    if server and target is not None and server_part(target) == server:
        return None
    return Refusal("redact-level", f"{event.sender} lacks the power to redact")
