"""An event's audience in one integer, so that statements can filter what a user may see.

From the lowest bit:

===== ==================================================================================
bits  meaning
===== ==================================================================================
0-1   history visibility after the event (:class:`~synrepl.rooms.HistoryVisibility`)
2-3   the less restrictive of the ones before and after
4     it is a state event
5     it sets the membership of its state key
6-8   that user's membership before (:data:`MEMBERSHIPS`)
9-10  why no client may see it (:data:`HIDDEN`); 0: some may
11-13 the membership that it sets (:data:`MEMBERSHIPS`)
14    it is beside the main line (:mod:`synrepl.storage.rooms.visibility.event_places`)
15    it is the first of its group on the main line
16    nobody may see it: it was rejected, or is an outlier
17    its visibility does not follow from the state after it alone
18    it is near the main line
===== ==================================================================================

The first five fields and the event's own columns are an :class:`~synrepl.rooms.EventAudience`, without
loss. The rest is there for statements. An event that nobody may see still has the value that it sets,
because it may be an entry of a state.
"""

from __future__ import annotations

from collections.abc import Sequence

from synrepl.rooms import (
    Event,
    EventAudience,
    HistoryVisibility,
    VisibilityReason,
    audience_of,
    membership_after,
)

#: Memberships by number. No room version has others: an event that sets one is rejected.
MEMBERSHIPS: Sequence[str] = ("leave", "join", "invite", "ban", "knock")
LEAVE, JOIN, INVITE, BAN, KNOCK = range(5)

#: The number of every other membership. It counts as ``leave`` before an event, and never after.
OTHER_MEMBERSHIP = 7

#: The text of :data:`OTHER_MEMBERSHIP`, which no event has.
OTHER = ""

#: Why no client may see an event, by number.
HIDDEN: Sequence[VisibilityReason | None] = (
    None,
    VisibilityReason.SOFT_FAILED,
    VisibilityReason.ALIASES,
    VisibilityReason.DUMMY,
)

_TWO_BITS, _THREE_BITS = 0b11, 0b111
WIDEST_SHIFT = 2
STATE_BIT = 1 << 4
TARGET_BIT = 1 << 5
BEFORE_SHIFT = 6
HIDDEN_SHIFT = 9
SETS_SHIFT = 11
BESIDE_BIT = 1 << 14
FIRST_BIT = 1 << 15
NOBODY_BIT = 1 << 16
EXCEPTION_SHIFT = 17
EXCEPTION_BIT = 1 << EXCEPTION_SHIFT
NEAR_BIT = 1 << 18

#: The place of an event along the main line, which is derived.
PLACE_BITS = BESIDE_BIT | FIRST_BIT | NEAR_BIT

#: Of an event that no client may see, whoever asks, one of these bits is set.
NEVER_BITS = _TWO_BITS << HIDDEN_SHIFT | NOBODY_BIT


def pack_audience(event: Event, audience: EventAudience) -> int:
    """The audience of an accepted event, as stored.

    The bits of its place on the line are not set; see :mod:`synrepl.storage.rooms.visibility.event_places`.
    """
    packed = (
        audience.visibility
        | audience.widest << WIDEST_SHIFT
        | audience.is_state * STATE_BIT
        | HIDDEN.index(audience.hidden_because) << HIDDEN_SHIFT
    )
    exception = audience.visibility is not audience.widest
    if audience.target is not None:
        sets = membership_number(membership_after(event, {}, audience.target))
        before = membership_number(audience.target_before)
        packed |= TARGET_BIT | before << BEFORE_SHIFT | sets << SETS_SHIFT
        # Its target may see what the state after it would hide.
        exception = exception or sets != JOIN
    return packed | exception * EXCEPTION_BIT


def pack_unseen(event: Event) -> int:
    """The audience of an event that was rejected or is an outlier: nobody, and the value that it sets."""
    alone = audience_of(event, {})
    return pack_audience(event, alone) & ~EXCEPTION_BIT | NOBODY_BIT


def unpack_audience(
    packed: int, event_id: str, sender: str, state_key: str | None
) -> EventAudience | None:
    """The audience of an event, from its columns; None if nobody may see it."""
    if packed & NOBODY_BIT:
        return None
    return EventAudience(
        event_id,
        sender,
        HistoryVisibility(packed & _TWO_BITS),
        HistoryVisibility(packed >> WIDEST_SHIFT & _TWO_BITS),
        bool(packed & STATE_BIT),
        state_key if packed & TARGET_BIT else None,
        membership_text(packed >> BEFORE_SHIFT & _THREE_BITS),
        HIDDEN[packed >> HIDDEN_SHIFT & _TWO_BITS],
    )


def membership_set(packed: int) -> int:
    """The number of the membership that an event sets."""
    return packed >> SETS_SHIFT & _THREE_BITS


def visibility_set(packed: int) -> HistoryVisibility:
    """The history visibility after an event."""
    return HistoryVisibility(packed & _TWO_BITS)


def membership_number(membership: str) -> int:
    """The number of a membership."""
    return MEMBERSHIPS.index(membership) if membership in MEMBERSHIPS else OTHER_MEMBERSHIP


def membership_text(number: int) -> str:
    """The membership with a number."""
    return OTHER if number == OTHER_MEMBERSHIP else MEMBERSHIPS[number]
