"""What a user gets of an event.

Sources: https://spec.matrix.org/v1.16/client-server-api/#server-behaviour-5 (the numbered rules of
history visibility) and #ignoring-users. What they leave open (erased senders, peeking, what an ended
invitation shows) is as with the reference: docs/adr/0015-who-may-see-an-event.md.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from synrepl.rooms.visibility.audience import (
    INVITE,
    JOIN,
    LEAVE,
    EventAudience,
    HistoryVisibility,
    more_permissive,
)
from synrepl.rooms.visibility.verdict import Sight, VisibilityReason, VisibilityVerdict


class Viewer(NamedTuple):
    """A user who asks.

    :ivar is_peeking: it is not in the room, never was, and looks in; else shared history is its own
    :ivar ignored: users whose messages it does not want
    """

    user: str
    is_peeking: bool = False
    ignored: Container[str] = frozenset()


def visible_to_user(
    audience: EventAudience, viewer: Viewer, membership: str, erased: Container[str] = frozenset()
) -> VisibilityVerdict:
    """Whether a user may see an event, and how.

    :param membership: the user's, in the state after the event
    :param erased: users who erased themselves
    """
    is_erased = audience.sender in erased
    own = audience.target == viewer.user
    widest_membership = more_permissive(membership, audience.target_before) if own else membership
    reason = (
        audience.hidden_because
        or _ignored(audience, viewer)
        or _by_history(audience, viewer, widest_membership, is_erased)
    )
    if own and not reason.shows and reason not in _REGARDLESS and _ended(audience, membership):
        reason = VisibilityReason.INVITATION_ENDED
    if not reason.shows:
        return VisibilityVerdict(Sight.HIDDEN, reason, is_erased)
    # Whoever was there has read it already; but one's own leave ends that.
    there = widest_membership == JOIN and not (own and membership == LEAVE)
    whole = not is_erased or there
    return VisibilityVerdict(Sight.FULL if whole else Sight.REDACTED, reason, is_erased)


#: Hidden whatever the history's visibility is.
_REGARDLESS = (
    VisibilityReason.SOFT_FAILED,
    VisibilityReason.ALIASES,
    VisibilityReason.DUMMY,
    VisibilityReason.IGNORED,
)


def _ignored(audience: EventAudience, viewer: Viewer) -> VisibilityReason | None:
    """State is shown all the same, for it changes the room for everybody."""
    ignores = not audience.is_state and audience.sender in viewer.ignored
    return VisibilityReason.IGNORED if ignores else None


def _by_history(
    audience: EventAudience, viewer: Viewer, membership: str, is_erased: bool
) -> VisibilityReason:
    """The numbered rules of history visibility.

    A change of the visibility counts by the wider one. Of an erased sender only the redacted form
    is shown, which does not tell what was before; and an invitation opens only the new one.
    """
    visibility = audience.visibility if is_erased else audience.widest
    if visibility is HistoryVisibility.WORLD_READABLE:  # rule 1
        return VisibilityReason.WORLD_READABLE
    if membership == JOIN:  # rule 2
        return VisibilityReason.JOINED
    if visibility is HistoryVisibility.SHARED and not viewer.is_peeking:  # rule 3
        return VisibilityReason.SHARED
    if audience.visibility is HistoryVisibility.INVITED and membership == INVITE:  # rule 4
        return VisibilityReason.INVITED
    return _REFUSALS[visibility]  # rule 5


_REFUSALS = {
    HistoryVisibility.SHARED: VisibilityReason.PEEKING,
    HistoryVisibility.INVITED: VisibilityReason.NOT_INVITED,
    HistoryVisibility.JOINED: VisibilityReason.NOT_JOINED,
}


def _ended(audience: EventAudience, membership: str) -> bool:
    """Whoever is invited has to be told when it no longer is."""
    return audience.target_before == INVITE and membership == LEAVE
