"""Whether a redaction applies to its target, and the redacted target.

Sources: step 11 of https://spec.matrix.org/v1.16/rooms/v1/#authorization-rules for versions whose
auth rules decide; https://spec.matrix.org/v1.16/rooms/v3/#handling-redactions for later ones.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from synrepl.rooms.auth.power_levels import check_redaction, power_levels_at
from synrepl.rooms.event import Event, event_of
from synrepl.rooms.event_types import CREATE_KEY
from synrepl.rooms.identifiers import BadIdentifier, server_of
from synrepl.rooms.redacting import redact
from synrepl.rooms.state import StateEvents


class RedactionReason(StrEnum):
    """Why a redaction applies or does not."""

    POWER = "power level"
    SAME_SERVER = "same server"
    OTHER_SERVER = "other server without the power level"
    REFUSED = "redaction event rejected"
    CREATE = "m.room.create is never redacted"
    NOT_ITS_TARGET = "another event, or another room"
    NO_CREATE = "state without m.room.create"

    @property
    def applies(self) -> bool:
        """Whether the redaction applies."""
        return self in (RedactionReason.POWER, RedactionReason.SAME_SERVER)


class RedactionEffect(NamedTuple):
    """The effect of a redaction on its target.

    :ivar redacted: the redacted target; None if the redaction does not apply
    """

    why: RedactionReason
    redacted: Event | None


def effect_of_redaction(redaction: Event, target: Event, state: StateEvents) -> RedactionEffect:
    """Decide whether an accepted redaction applies to its target.

    ``m.room.create`` is never redacted, as in Synapse, because the room depends on its content. The
    specification has no such exception.

    :param state: the room's state before the redaction
    """
    why = _why(redaction, target, state)
    if not why.applies:
        return RedactionEffect(why, None)
    return RedactionEffect(why, event_of(redact(target.fields, target.version), target.version))


def _why(redaction: Event, target: Event, state: StateEvents) -> RedactionReason:
    if redaction.redacts != target.event_id or redaction.room_id != target.room_id:
        return RedactionReason.NOT_ITS_TARGET
    create = state.get(CREATE_KEY)
    if create is None:
        return RedactionReason.NO_CREATE
    levels = power_levels_at(state, create)
    powerful = levels.of(redaction.sender) >= levels.redact
    authorised = redaction.version.redactions_are_authorised
    if authorised and check_redaction(redaction, levels) is not None:
        return RedactionReason.REFUSED
    if target.is_create:
        return RedactionReason.CREATE
    if not (authorised or powerful or _share_server(redaction.sender, target.sender)):
        return RedactionReason.OTHER_SERVER
    return RedactionReason.POWER if powerful else RedactionReason.SAME_SERVER


def _share_server(one: str, other: str) -> bool:
    try:
        return server_of(one) == server_of(other)
    except BadIdentifier:
        return False
