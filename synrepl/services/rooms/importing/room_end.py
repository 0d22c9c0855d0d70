"""Verifies what a server keeps of a room besides its events: its end, and state groups of no event."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from synrepl.rooms import (
    CANNOT_JUDGE,
    CompactStateMap,
    DifferingEntry,
    delta,
    differing_entries,
    lookup_state_after,
    run,
)
from synrepl.services.rooms.importing.audit import RoomAuditor
from synrepl.services.rooms.importing.findings import FindingKind, ImportCounts, ImportFinding
from synrepl.services.rooms.importing.source_view import SourceRoomView
from synrepl.storage.database import Transaction
from synrepl.storage.foreign.rooms.states import (
    SourceGroup,
    current_state,
    forward_extremities,
    superseded_extremities,
    unused_groups,
)
from synrepl.storage.foreign.rooms.tables import count_events


class RoomEnd(NamedTuple):
    """The current end of a room, at the source.

    :ivar events: number of events of the room at the same moment
    """

    forward_extremities: Sequence[str]
    events: int
    findings: list[ImportFinding]


class GroupPage(NamedTuple):
    """State groups of no event, from a page of a room's groups.

    :ivar last: the last number of the page; None at the end
    """

    findings: list[ImportFinding]
    counts: ImportCounts
    last: int | None


def audit_end(auditor: RoomAuditor, txn: Transaction) -> RoomEnd:
    """Compute the current state again from the forward extremities, and compare it.

    A server that no user is left on keeps no current state; that is no difference.
    """
    room_id = auditor.room_id
    view = SourceRoomView(auditor.memory, txn)
    extremities = forward_extremities(txn, room_id)
    findings: list[ImportFinding] = []
    for event_id, follower in superseded_extremities(txn, room_id).items():
        findings.append(
            ImportFinding(
                FindingKind.EXTREMITY,
                room_id,
                event_id,
                column="event_forward_extremities",
                theirs=event_id,
                ours=follower,
            )
        )
    places = view.states_at(extremities)
    known = [each for each in extremities if each in places]
    for event_id in extremities:
        if event_id not in places:
            findings.append(
                ImportFinding(
                    FindingKind.EXTREMITY,
                    room_id,
                    event_id,
                    column="event_forward_extremities",
                    theirs=event_id,
                )
            )
    theirs = current_state(txn, room_id)
    if theirs and known:
        try:
            ours = run(lookup_state_after(auditor.version, known, auditor.memory.resolutions), view)
        except CANNOT_JUDGE as error:
            findings.append(ImportFinding(FindingKind.MISSING_EVENT, room_id, ours=str(error)))
        else:
            findings += _compared(room_id, ours, auditor.memory.empty_state.becoming(theirs))
    return RoomEnd(extremities, count_events(txn, room_id), findings + view.findings)


def audit_unused_groups(
    auditor: RoomAuditor, txn: Transaction, after: int, limit: int
) -> GroupPage:
    """Compare state groups that are the state after no event.

    Most were made for a state event, as the state before it. Some were made for an event that was never
    sent; their entries are read, and nothing is known to compare them with.
    """
    auditor.memory.trim()
    view = SourceRoomView(auditor.memory, txn)
    groups, last = unused_groups(txn, auditor.room_id, after, limit)
    view.read_groups([each.group for each in groups])
    findings: list[ImportFinding] = []
    counts = ImportCounts(findings={})
    events = view.known_events([each.event_id for each in groups]).events
    places = view.states_at([each.event_id for each in groups if each.event_id in events])
    for stored in groups:
        theirs, is_whole = auditor.memory.groups[stored.group]
        event = events.get(stored.event_id)
        if event is None or event.event_id not in places or not is_whole:
            continue
        after_it = places[event.event_id].state_after
        assert after_it is not None
        counts.groups += 1
        if theirs == after_it:
            continue
        before = _before(auditor, view, event.prev_event_ids)
        if before is None:
            continue
        entries = min(
            differing_entries(theirs, before), differing_entries(theirs, after_it), key=len
        )
        for each in (event.event_id, *event.prev_event_ids):
            entries -= auditor.differences.get(each, frozenset())
        findings += _group_findings(auditor.room_id, stored, entries)
    findings += view.findings
    for finding in findings:
        name = finding.kind.value
        counts.findings[name] = counts.findings.get(name, 0) + 1
    return GroupPage(findings, counts, last)


def _before(
    auditor: RoomAuditor, view: SourceRoomView, parents: Sequence[str]
) -> CompactStateMap | None:
    """The state before an event with these prev events; None if it cannot be computed."""
    places = view.states_at(parents)
    if any(each not in places for each in parents):
        return None
    try:
        return run(lookup_state_after(auditor.version, parents, auditor.memory.resolutions), view)
    except CANNOT_JUDGE:
        return None


def _group_findings(
    room_id: str, stored: SourceGroup, entries: Collection[DifferingEntry]
) -> list[ImportFinding]:
    return [
        ImportFinding(
            FindingKind.GROUP, room_id, stored.event_id, stored.group, key, theirs=theirs, ours=ours
        )
        for key, theirs, ours in sorted(entries)
    ]


def _compared(room_id: str, ours: CompactStateMap, theirs: CompactStateMap) -> list[ImportFinding]:
    change = delta(theirs, ours)
    return [
        ImportFinding(
            FindingKind.CURRENT_STATE,
            room_id,
            key=key,
            theirs=theirs.get(key),
            ours=change.entries.get(key),
        )
        for key in sorted([*change.entries, *change.removed])
    ]
