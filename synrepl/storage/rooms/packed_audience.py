"""An event's audience in one integer, for statements that filter what a user may see.

From the lowest bit: 2 bits history visibility after the event, 2 bits the wider one of before and after
(:class:`~synrepl.rooms.HistoryVisibility`), 1 bit whether it is a state event, 1 bit whether it sets
the membership of its state key, 3 bits that user's membership before (:data:`MEMBERSHIPS`), 2 bits why no client
may see it (0: some may). The sender and the target are columns of the event.
"""

from __future__ import annotations

from synrepl.rooms import EventAudience, HistoryVisibility, VisibilityReason

#: Memberships by number. Any other counts as ``leave`` for visibility, and is read back as that.
MEMBERSHIPS = ("leave", "join", "invite", "ban", "knock")

#: Why no client may see an event, by number.
HIDDEN = (
    None,
    VisibilityReason.SOFT_FAILED,
    VisibilityReason.ALIASES,
    VisibilityReason.DUMMY,
)

VISIBILITY_BITS = 0b11
WIDEST_SHIFT = 2
STATE_BIT = 1 << 4
TARGET_BIT = 1 << 5
BEFORE_SHIFT = 6
BEFORE_BITS = 0b111
HIDDEN_SHIFT = 9
HIDDEN_BITS = 0b11


def pack_audience(audience: EventAudience) -> int:
    """The audience as stored."""
    before = audience.target_before
    return (
        audience.visibility
        | audience.widest << WIDEST_SHIFT
        | audience.is_state * STATE_BIT
        | (audience.target is not None) * TARGET_BIT
        | (MEMBERSHIPS.index(before) if before in MEMBERSHIPS else 0) << BEFORE_SHIFT
        | HIDDEN.index(audience.hidden_because) << HIDDEN_SHIFT
    )


def unpack_audience(
    packed: int, event_id: str, sender: str, state_key: str | None
) -> EventAudience:
    """The audience of an event, from its columns."""
    return EventAudience(
        event_id,
        sender,
        HistoryVisibility(packed & VISIBILITY_BITS),
        HistoryVisibility(packed >> WIDEST_SHIFT & VISIBILITY_BITS),
        bool(packed & STATE_BIT),
        state_key if packed & TARGET_BIT else None,
        MEMBERSHIPS[packed >> BEFORE_SHIFT & BEFORE_BITS],
        HIDDEN[packed >> HIDDEN_SHIFT & HIDDEN_BITS],
    )
