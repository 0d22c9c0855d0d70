"""The rules of :func:`synrepl.rooms.visible_to_user` as SQL expressions.

The rules stay where they are; these are a second form of them, for filtering before ``LIMIT``. A test
compares the two for every combination of their inputs. Expressions are composed of text of this module's
callers, never of values from outside: those are parameters.
"""

from __future__ import annotations

from typing import NamedTuple

from synrepl.rooms import HistoryVisibility, Sight, VisibilityReason
from synrepl.storage.rooms.visibility.audience import (
    BEFORE_SHIFT,
    HIDDEN,
    HIDDEN_SHIFT,
    INVITE,
    JOIN,
    LEAVE,
    SETS_SHIFT,
    STATE_BIT,
    WIDEST_SHIFT,
)

#: Reasons by the number that the expressions give.
REASONS = tuple(VisibilityReason)

#: The part of an event that is seen, by the number that :meth:`ViewerSql.sight` gives.
SIGHTS = (Sight.HIDDEN, Sight.REDACTED, Sight.FULL)

_NUMBERS = {reason: number for number, reason in enumerate(REASONS)}
_WORLD, _SHARED = int(HistoryVisibility.WORLD_READABLE), int(HistoryVisibility.SHARED)
_INVITED = int(HistoryVisibility.INVITED)


class ViewerSql(NamedTuple):
    """The inputs of the rules, as SQL expressions.

    :ivar audience: the packed audience
    :ivar membership: number of the viewer's membership after the event. It is evaluated only
        where it matters; for events that are not the viewer's own, anything but a join and an invite is equal
    :ivar own: whether the event sets the viewer's membership
    :ivar ignored: whether the viewer ignores the sender
    :ivar erased: whether the sender's account was erased
    :ivar peeking: whether the viewer is not, and never was, in the room
    """

    audience: str
    membership: str
    own: str
    ignored: str
    erased: str
    peeking: str

    def reason(self) -> str:
        """The number of the reason."""
        by_number = " ".join(
            f"WHEN {number} THEN {_NUMBERS[reason]}"
            for number, reason in enumerate(HIDDEN)
            if reason is not None
        )
        return (
            "CASE"
            f" WHEN {self._bits(HIDDEN_SHIFT)} <> 0 THEN CASE {self._bits(HIDDEN_SHIFT)} {by_number} END"
            f" WHEN {self.audience} & {STATE_BIT} = 0 AND {self.ignored}"
            f" THEN {_NUMBERS[VisibilityReason.IGNORED]}"
            f" WHEN {self._counts(_WORLD)} THEN {_NUMBERS[VisibilityReason.WORLD_READABLE]}"
            f" WHEN {self._counts(_SHARED)} AND NOT {self.peeking} THEN {self._shared()}"
            f" ELSE {self._by_membership()} END"
        )

    def shows(self) -> str:
        """Whether the viewer sees any of the event."""
        shown = ", ".join(str(number) for number, reason in enumerate(REASONS) if reason.shows)
        return f"({self.reason()}) IN ({shown})"

    def shows_ordinary(self) -> str:
        """The same for an event that clients may see, and whose visibility follows from the state after it.

        The membership is evaluated once at most, and only where the history visibility needs it.
        """
        newer = self._bits(0)
        is_open = f"{newer} = {_WORLD} OR {newer} = {_SHARED} AND NOT {self.peeking}"
        return (
            f"(({self.audience} & {STATE_BIT} <> 0 OR NOT {self.ignored}) AND CASE WHEN {is_open} THEN true"
            f" ELSE CASE {self.membership} WHEN {JOIN} THEN true"
            f" WHEN {INVITE} THEN {newer} = {_INVITED} ELSE false END END)"
        )

    def sight(self, reason: str) -> str:
        """The number of what is seen.

        :param reason: that of :meth:`reason`, as an expression
        """
        hidden, redacted, full = range(len(SIGHTS))
        shown = ", ".join(str(number) for number, each in enumerate(REASONS) if each.shows)
        return (
            f"CASE WHEN {reason} NOT IN ({shown}) THEN {hidden}"
            f" WHEN NOT {self.erased} THEN {full}"
            f" WHEN {self._was_joined()} AND NOT ({self.own} AND {self.membership} = {LEAVE})"
            f" THEN {full} ELSE {redacted} END"
        )

    def _bits(self, shift: int, mask: int = 0b11) -> str:
        return f"(({self.audience} >> {shift}) & {mask})"

    def _counts(self, visibility: int) -> str:
        """Whether this history visibility counts: the wider one, of an erased sender the newer one."""
        widest, newer = self._bits(WIDEST_SHIFT), self._bits(0)
        return f"CASE WHEN {widest} <> {newer} AND {self.erased} THEN {newer} ELSE {widest} END = {visibility}"

    def _shared(self) -> str:
        joined, shared = (
            _NUMBERS[VisibilityReason.JOINED],
            _NUMBERS[VisibilityReason.SHARED],
        )
        return f"CASE WHEN {self._was_joined()} THEN {joined} ELSE {shared} END"

    def _by_membership(self) -> str:
        reasons = {
            reason: _NUMBERS[reason]
            for reason in (
                VisibilityReason.JOINED,
                VisibilityReason.INVITED,
                VisibilityReason.INVITATION_ENDED,
                VisibilityReason.PEEKING,
                VisibilityReason.NOT_INVITED,
                VisibilityReason.NOT_JOINED,
            )
        }
        invited_before = f"{self._before()} = {INVITE}"
        return (
            f"CASE WHEN {self._was_joined()} THEN {reasons[VisibilityReason.JOINED]}"
            f" WHEN {self._bits(0)} = {_INVITED} AND {self._was_invited()}"
            f" THEN {reasons[VisibilityReason.INVITED]}"
            f" WHEN {self.own} AND {invited_before} AND {self.membership} = {LEAVE}"
            f" THEN {reasons[VisibilityReason.INVITATION_ENDED]}"
            f" WHEN {self._counts(_SHARED)} THEN {reasons[VisibilityReason.PEEKING]}"
            f" WHEN {self._counts(_INVITED)} THEN {reasons[VisibilityReason.NOT_INVITED]}"
            f" ELSE {reasons[VisibilityReason.NOT_JOINED]} END"
        )

    def _before(self) -> str:
        return self._bits(BEFORE_SHIFT, 0b111)

    def _was_joined(self) -> str:
        return f"({self.membership} = {JOIN} OR {self.own} AND {self._before()} = {JOIN})"

    def _was_invited(self) -> str:
        """Whether the more permissive of before and after is an invite, given that it is no join."""
        return f"({self.membership} = {INVITE} OR {self.own} AND {self._before()} = {INVITE})"


def membership_set(audience: str) -> str:
    """The number of the membership that an event sets, from its packed audience."""
    return f"(({audience} >> {SETS_SHIFT}) & 7)"
