"""SQL of what a user sees: the rules over the columns of an event, and their results.

The statements name the event ``e`` and take the parameters of :func:`viewer_params`.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import NamedTuple

from synrepl.core.errors import InputError
from synrepl.rooms import EventOrdering, Sight, Viewer, VisibilityVerdict
from synrepl.storage.database import PlannedOnce, Record, Script, Transaction
from synrepl.storage.rooms.tables.events import EventFlags
from synrepl.storage.rooms.visibility.audience import (
    BAN,
    BESIDE_BIT,
    EXCEPTION_BIT,
    INVITE,
    JOIN,
    KNOCK,
    LEAVE,
    NEAR_BIT,
    NEVER_BITS,
    NOBODY_BIT,
    OTHER_MEMBERSHIP,
    membership_text,
)
from synrepl.storage.rooms.visibility.audience_sql import REASONS, SIGHTS, ViewerSql, membership_set
from synrepl.storage.rooms.visibility.erased_users import is_erased_sql
from synrepl.storage.rooms.visibility.viewers import NO_SLOT, ViewerHistory

#: No client may see an event of which this is not 0.
NEVER = f"(e.audience & {NEVER_BITS})"

#: An event beside the main line that clients may see.
IS_BESIDE = f"(e.audience & {NEVER_BITS | BESIDE_BIT}) = {BESIDE_BIT}"

#: An event on the main line, or near it, that clients may see.
IS_ON_LINE = f"(e.audience & {NEVER_BITS | BESIDE_BIT}) = 0"

#: An event whose visibility does not follow from the state after it, for the viewer of the parameters.
IS_EXCEPTION = f"(e.audience & {EXCEPTION_BIT}) <> 0 AND e.slot = ANY (%(slots)s::int[])"

#: An event near the main line in which the viewer's membership, or the history visibility, may be another
#: one than on the line.
IS_DIFFERENT = (
    f"(e.audience & {NEAR_BIT}) <> 0 AND EXISTS (SELECT FROM synrepl._branch_memberships b"
    " WHERE b.room_no = e.room_no AND b.slot = ANY (%(slots)s::int[])"
    " AND b.topological = e.topological AND b.stream_id = e.stream_id)"
)


#: The numbers of all memberships but the one that a user has who is not in the room.
_AFTER_GAP = int(EventFlags.AFTER_GAP)
_OTHERS = (JOIN, INVITE, BAN, KNOCK, OTHER_MEMBERSHIP)


class TooManyIgnored(InputError):
    """user {user} ignores {count} users; at most {limit} are supported"""


#: Maximum number of users that one user ignores.
MAX_IGNORED = 10_000


class SeenEvent(NamedTuple):
    """An event, and what a user sees of it.

    :ivar membership: the user's membership after the event
    :ivar redacted_by: number of the redaction that applies to it; None if there is none
    :ivar type: event type
    :ivar slot: of its state key; None for a message event
    :ivar sent_at: ``origin_server_ts``, in milliseconds
    :ivar is_after_gap: whether events before it were missing when it came
    """

    event_no: int
    event_id: str
    ordering: EventOrdering
    verdict: VisibilityVerdict
    membership: str
    redacted_by: int | None
    type: str
    slot: int | None
    sender: str
    sent_at: int
    group_before: int
    is_after_gap: bool

    @property
    def is_whole(self) -> bool:
        """Whether the user gets the event as it came, not its redacted form."""
        return self.verdict.sight is Sight.FULL and self.redacted_by is None


def viewer_sql(history: ViewerHistory, viewer: Viewer) -> ViewerSql:
    """The inputs of the rules for an event ``e``."""
    ignores = bool(list(viewer.ignored))
    return _viewer_sql(history.slot != NO_SLOT, ignores=ignores, peeks=viewer.is_peeking)


@cache
def _viewer_sql(has_slot: bool, *, ignores: bool, peeks: bool) -> ViewerSql:
    own = "coalesce(e.slot = %(slot)s, false)"
    by_state = _membership_by_state(has_slot)
    return ViewerSql(
        audience="e.audience",
        membership=f"CASE WHEN {own} THEN {membership_set('e.audience')} ELSE {by_state} END",
        own=own,
        ignored="e.sender = ANY (%(ignored)s::text[])" if ignores else "false",
        erased=is_erased_sql("e.sender"),
        peeking="true" if peeks else "false",
    )


def ordinary_sql(history: ViewerHistory, viewer: Viewer) -> ViewerSql:
    """The same for :meth:`.ViewerSql.shows_ordinary`: the viewer's own joins need no exception."""
    by_state = _membership_by_state(history.slot != NO_SLOT)
    return viewer_sql(history, viewer)._replace(membership=by_state)


@cache
def _membership_by_state(has_slot: bool) -> str:
    """The number of the viewer's membership in the state after an event."""
    if not has_slot:
        return str(LEAVE)
    on_line = " ".join(
        f"WHEN e.group_after <@ %(groups{number})s::int8multirange THEN {number}"
        for number in _OTHERS
    )
    beside = (
        f"coalesce((SELECT {membership_set('m.audience')} FROM synrepl._room_events m"
        f" WHERE m.event_no = synrepl.state_entry(e.room_no, e.group_after, %(slot)s)), {LEAVE})"
    )
    return (
        f"CASE WHEN e.audience & {BESIDE_BIT | NEAR_BIT} = 0 THEN CASE {on_line} ELSE {LEAVE} END"
        f" ELSE {beside} END"
    )


def viewer_params(history: ViewerHistory, viewer: Viewer) -> dict[str, object]:
    """The parameters of :func:`viewer_sql`.

    :raises TooManyIgnored: the user ignores more than :data:`MAX_IGNORED` users
    """
    ignored = sorted(viewer.ignored)
    if len(ignored) > MAX_IGNORED:
        raise TooManyIgnored(user=viewer.user, count=len(ignored), limit=MAX_IGNORED)
    groups = {f"groups{number}": history.groups(number) for number in _OTHERS}
    slots = [each for each in (history.slot, history.visibility_slot) if each != NO_SLOT]
    return {
        "room": history.room.room_no,
        "ignored": ignored,
        "slot": history.slot,
        "slots": slots,
        **groups,
    }


def seen_events(
    txn: Transaction,
    source: str,
    params: dict[str, object],
    sql: ViewerSql,
    order: str,
    *,
    planned_once: bool,
) -> list[SeenEvent]:
    """What a user sees of some events; events that nobody may see are left out.

    :param source: a query for their numbers, as ``event_no``
    :param order: by what they are ordered
    :param planned_once: whether there are few texts like this one, and it is run often
    """
    statement = _seen_text(source, sql, order)
    txn.execute(Script([statement]) if planned_once else str(statement), params)
    return [_seen(row) for row in txn.fetchall()]


@lru_cache(100)
def _seen_text(source: str, sql: ViewerSql, order: str) -> PlannedOnce:
    # Each input is evaluated once; OFFSET keeps the planner from putting it in wherever it is used, and from reading
    # a small table whole for a few events.
    known = sql._replace(
        audience="found.audience",
        membership="found.membership",
        own="found.own",
        ignored=sql.ignored.replace("e.", "found."),
        erased="found.erased",
    )
    return PlannedOnce(f"""
        SELECT found.event_no, found.event_id, found.topological, found.stream_id,
               found.redacted_by, found.membership, found.reason, found.erased,
               {known.sight("found.reason")}, t.type, found.slot, found.sender, found.origin_server_ts,
               found.group_before, found.flags & {_AFTER_GAP} <> 0
          FROM (SELECT found.*, {known.reason()} AS reason
                  FROM (SELECT e.event_no, e.event_id, e.topological, e.stream_id, e.redacted_by,
                               e.type_no, e.slot, e.origin_server_ts, e.group_before, e.flags,
                               e.sender, e.audience, {sql.membership} AS membership,
                               {sql.erased} AS erased, {sql.own} AS own
                          FROM ({source}) AS wanted CROSS JOIN LATERAL (
                               SELECT e.* FROM synrepl._room_events e
                                WHERE e.event_no = wanted.event_no OFFSET 0) AS e
                         WHERE e.room_no = %(room)s AND e.audience & {NOBODY_BIT} = 0
                        OFFSET 0) AS found
                OFFSET 0) AS found
          JOIN synrepl._event_types t USING (type_no)
         ORDER BY {order}""")


def _seen(row: Record) -> SeenEvent:
    event_no, event_id, topological, stream_id, redacted_by, membership, *rest = row
    reason, erased, sight, *more = rest
    verdict = VisibilityVerdict(SIGHTS[sight], REASONS[reason], erased)
    return SeenEvent(
        event_no,
        event_id,
        EventOrdering(topological, stream_id),
        verdict,
        membership_text(membership),
        redacted_by,
        *more,
    )
