"""Whether a user may see an event.

Sources: https://spec.matrix.org/v1.16/client-server-api/#server-behaviour-5 (the numbered rules of
history visibility) and #ignoring-users. What they leave open (erased senders, peeking, withdrawn
invites) is as in Synapse: docs/adr/0015-who-may-see-an-event.md.
"""

from __future__ import annotations

from collections.abc import Collection, Container
from typing import NamedTuple

from synrepl.rooms.visibility.audience import (
    INVITE,
    JOIN,
    LEAVE,
    EventAudience,
    HistoryVisibility,
    Sight,
    VisibilityReason,
    VisibilityVerdict,
    more_permissive,
)


class Viewer(NamedTuple):
    """The requesting user.

    :ivar is_peeking: whether the user previews the room without ever having been in it; otherwise shared
        history is visible
    :ivar ignored: users that the user ignores
    """

    user: str
    is_peeking: bool = False
    ignored: Collection[str] = frozenset()


def visible_to_user(
    audience: EventAudience, viewer: Viewer, membership: str, erased: Container[str] = frozenset()
) -> VisibilityVerdict:
    """Whether a user may see an event, in full or redacted.

    :param membership: the user's membership in the state after the event
    :param erased: users whose accounts were erased
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
    # A user who was joined has seen it already; but the user's own leave ends that.
    there = widest_membership == JOIN and not (own and membership == LEAVE)
    whole = not is_erased or there
    return VisibilityVerdict(Sight.FULL if whole else Sight.REDACTED, reason, is_erased)


#: Reasons that hide an event whatever the history visibility is.
_REGARDLESS = (
    VisibilityReason.SOFT_FAILED,
    VisibilityReason.ALIASES,
    VisibilityReason.DUMMY,
    VisibilityReason.IGNORED,
)


def _ignored(audience: EventAudience, viewer: Viewer) -> VisibilityReason | None:
    """Ignored senders; their state events are shown, because they change the room for all users."""
    ignores = not audience.is_state and audience.sender in viewer.ignored
    return VisibilityReason.IGNORED if ignores else None


def _by_history(
    audience: EventAudience, viewer: Viewer, membership: str, is_erased: bool
) -> VisibilityReason:
    """The numbered rules of history visibility.

    A change of the history visibility counts as the wider of old and new. The redacted form of an erased
    sender's event does not have the old value, so there only the new one counts; so it does for invites.
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
    """Whether the event withdraws the user's own invite, which the user must learn."""
    return audience.target_before == INVITE and membership == LEAVE
