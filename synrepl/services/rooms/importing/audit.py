"""Verifies the events and states of one room of a real Synapse, batch by batch.

Every event is hashed, its ID computed, and its signatures checked (:mod:`.received`). It is judged again, and
the state after it is computed again from the states after its prev events, and compared with the state
group that the server has for it. Where they differ, what follows builds on what was computed, so a
difference is named once, where it begins; at later events it is *inherited*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

from synrepl.rooms import (
    CANNOT_JUDGE,
    BadEvent,
    CompactStateMap,
    DifferingEntry,
    Event,
    Judged,
    RoomVersion,
    StateKey,
    auth_dependencies,
    differing_entries,
    entries_of_verdict,
    judge,
    judge_outlier,
)
from synrepl.services.rooms.importing.audited import (
    AuditedBatch,
    as_arrived,
)
from synrepl.services.rooms.importing.findings import (
    CORRUPT,
    FindingKind,
    ImportCounts,
    ImportFinding,
    Quarantined,
)
from synrepl.services.rooms.importing.key_ring import KeyRing
from synrepl.services.rooms.importing.received import verify_stored
from synrepl.services.rooms.importing.sink import ImportedEvent
from synrepl.services.rooms.importing.source_view import SourceRoomMemory, SourceRoomView
from synrepl.storage.database import Transaction
from synrepl.storage.foreign.rooms.events import (
    RoomPosition,
    SourceEvent,
    events_after,
    redaction_targets,
)
from synrepl.storage.foreign.rooms.states import backward_extremities, read_groups
from synrepl.storage.foreign.rooms.stored_event import parse_stored_event

#: Events whose difference is remembered, and missing events that are named once.
_MAX_REMEMBERED = 10_000

#: Entries of a state that are named one by one; of a larger difference, the first.
_MAX_ENTRIES = 20


class RoomAuditor:
    """Verifies one room. Its methods run in a read-only transaction on the source.

    :ivar differences: by event, the entries in which the server's state differs, as far as remembered
    :ivar named: missing events that were named
    :ivar not_imported: events in quarantine, as far as remembered
    """

    def __init__(self, room_id: str, version: RoomVersion, keys: KeyRing) -> None:
        self.room_id = room_id
        self.version = version
        self.memory = SourceRoomMemory(room_id, version)
        self._keys = keys
        self.differences: dict[str, frozenset[DifferingEntry]] = {}
        self.named: dict[str, None] = {}
        self.not_imported: dict[str, None] = {}

    def next_batch(self, txn: Transaction, after: RoomPosition, limit: int) -> AuditedBatch:
        """Verify the next events in topological order."""
        return self._audit(txn, events_after(txn, self.room_id, after, limit), is_copy=True)

    def these(self, txn: Transaction, rows: Sequence[SourceEvent]) -> AuditedBatch:
        """Verify some events that are new at the source, given in topological order."""
        return self._audit(txn, rows, is_copy=False)

    def _audit(self, txn: Transaction, rows: Sequence[SourceEvent], is_copy: bool) -> AuditedBatch:
        self.memory.trim()
        _trim(self.differences)
        _trim(self.named)
        _trim(self.not_imported)
        batch = _Batch(self, txn, SourceRoomView(self.memory, txn), is_copy)
        parsed = batch.parse(rows)
        self._keys.load(txn, {each for event in parsed.values() for each in event.signatures})
        verified = batch.verify(rows, parsed, self._keys)
        batch.prefetch(rows, verified)
        for row in rows:
            if row.event_id in verified:
                batch.judge(row, verified[row.event_id])
        batch.check_redactions(verified)
        return batch.result(rows)


class _Batch:
    """One batch of a room under way."""

    def __init__(
        self, auditor: RoomAuditor, txn: Transaction, view: SourceRoomView, is_copy: bool
    ) -> None:
        self._is_copy = is_copy
        self._room_id = auditor.room_id
        self._version = auditor.version
        self._auditor = auditor
        self._memory = auditor.memory
        self._txn = txn
        self._view = view
        self._findings: list[ImportFinding] = []
        self._counts = ImportCounts(findings={})
        self._events: list[ImportedEvent] = []
        self._quarantined: list[Quarantined] = []

    def parse(self, rows: Iterable[SourceEvent]) -> dict[str, Event]:
        """The rows that can be parsed, by the ID under which they are stored."""
        parsed = {}
        for row in rows:
            if row.raw is not None:
                try:
                    parsed[row.event_id] = parse_stored_event(row.raw, self._version)
                except BadEvent:
                    continue  # verified, and named, below
        return parsed

    def verify(
        self, rows: Iterable[SourceEvent], parsed: Mapping[str, Event], keys: KeyRing
    ) -> dict[str, Event]:
        """Checks 1 to 3; the events that can be trusted, by ID."""
        counts, memory = self._counts, self._memory
        trusted = {}
        for row in rows:
            counts.events += 1
            verified = verify_stored(row, self._version, keys.keys, parsed.get(row.event_id))
            self._findings += verified.findings
            counts.signatures += verified.is_signed is True
            counts.unverified += verified.is_signed is None and verified.event is not None
            counts.redacted += verified.is_redacted
            if verified.event is None:
                memory.events.pop(row.event_id, None)
                kind = next(each.kind for each in verified.findings if each.kind in CORRUPT)
                self._quarantine(row, kind)
            else:
                trusted[row.event_id] = verified.event
                if any(each.kind is FindingKind.WRONG_HASH for each in verified.findings):
                    reason = f"{FindingKind.WRONG_HASH}; imported in its redacted form"
                    kept = Quarantined(self._room_id, row.event_id, row.raw, reason)
                    self._quarantined.append(kept)
        return trusted

    def prefetch(self, rows: Iterable[SourceEvent], events: Mapping[str, Event]) -> None:
        """Read everything that judging the events usually needs."""
        memory = self._memory
        for row in rows:
            event = events.get(row.event_id)
            if event is not None:
                memory.events[row.event_id] = event
                if row.rejected is not None:
                    memory.rejected.add(row.event_id)
        cited = {each for event in events.values() for each in auth_dependencies(event)}
        self._view.known_events(cited)
        self._view.read_groups({row.group for row in rows if row.group is not None})
        within = {row.event_id for row in rows if not row.outlier}
        parents = {
            each
            for row in rows
            if not row.outlier and row.event_id in events
            for each in events[row.event_id].prev_event_ids
        }
        self._view.states_at(parents - within)

    def judge(self, row: SourceEvent, event: Event) -> None:
        """Checks 4 and 5, and the state after the event."""
        try:
            if row.outlier:
                self._judge_outlier(row, event)
            else:
                self._judge_full(row, event)
        except CANNOT_JUDGE as error:
            self._cannot_judge(row, error)

    def _judge_outlier(self, row: SourceEvent, event: Event) -> None:
        judged = judge_outlier(event, self._view)
        self._check_verdict(row, judged)
        self._memory.remember(event, judged.refusal is not None, None, judged.topological)
        self._counts.outliers += 1
        self._import(ImportedEvent(event, judged, row.position, outlier=True))

    def _judge_full(self, row: SourceEvent, event: Event) -> None:
        places = self._view.states_at(event.prev_event_ids)
        missing = [each for each in event.prev_event_ids if each not in places]
        given = self._given_state(row, event, missing) if missing else None
        judged: Judged[CompactStateMap] = judge(
            event,
            self._view,
            given,
            live=False,
            stream=row.position.stream,
            cache=self._memory.resolutions,
        )
        agrees = self._check_verdict(row, judged)
        after = judged.state_after
        assert after is not None
        if given is None:
            after = self._compare(row, judged, agrees)
        self._memory.remember(event, judged.refusal is not None, after, judged.topological)
        self._counts.rejected += judged.refusal is not None
        self._counts.soft_failed += row.soft_failed
        derivable = not missing and not any(
            each in self._auditor.not_imported for each in event.prev_event_ids
        )
        state = None if derivable else judged.state_before
        self._import(
            ImportedEvent(
                event,
                judged,
                row.position,
                backfilled=not self._is_copy and row.position.stream < 0,
                soft_failed=row.soft_failed,
                state_before=state,
            )
        )

    # States

    def _given_state(
        self, row: SourceEvent, event: Event, missing: Collection[str]
    ) -> CompactStateMap:
        """The state before an event whose prev events are missing, from the server."""
        self._counts.given += 1
        known = backward_extremities(self._txn, self._room_id, missing)
        self._name_missing(row, "prev_events", [each for each in missing if each not in known])
        if row.group is None:
            self._find(FindingKind.NO_STATE_GROUP, row, column="event_to_state_groups")
            return self._memory.empty_state
        after = self._memory.groups[row.group].state
        if event.state_key is None or row.rejected is not None:
            return after
        stored = read_groups(self._txn, [row.group]).get(row.group)
        near = None
        if stored is not None and stored.prev is not None:
            self._view.read_groups([stored.prev])
            near = self._memory.groups[stored.prev].state
        return self._view.state_without(event, after, near)

    def _compare(
        self, row: SourceEvent, judged: Judged[CompactStateMap], agrees: bool
    ) -> CompactStateMap:
        """Compare the state after an event with the server's; the map to remember."""
        ours = judged.state_after
        assert ours is not None
        assert judged.state_before is not None
        if row.group is None:
            if row.rejected is None:
                self._find(FindingKind.NO_STATE_GROUP, row, column="event_to_state_groups")
            return ours
        theirs, is_whole = self._memory.groups[row.group]
        if not is_whole:
            return ours  # it was named when it was read
        self._counts.states += 1
        if ours == theirs:
            self._memory.groups.adopt(row.group, ours)
            return ours
        self._counts.differing += 1
        entries = differing_entries(theirs, ours)
        differences = self._auditor.differences
        fresh = entries.difference(
            *(differences.get(parent, ()) for parent in judged.prev_event_ids)
        )
        if not agrees:
            # The verdict was named; what follows from it alone is not named again.
            fresh -= entries_of_verdict(judged)
        differences[row.event_id] = entries
        if not fresh:
            self._counts.inherited += 1
        elif not theirs:
            self._find(
                FindingKind.EMPTY_GROUP,
                row,
                group=row.group,
                column="state_groups_state",
                ours=f"{len(ours)} entries",
            )
            return ours
        for key, their, our in sorted(fresh)[:_MAX_ENTRIES]:
            self._find(FindingKind.STATE, row, group=row.group, key=key, theirs=their, ours=our)
        return ours

    # Verdicts

    def _check_verdict(self, row: SourceEvent, judged: Judged[CompactStateMap]) -> bool:
        refusal = judged.refusal
        if (refusal is not None) == (row.rejected is not None):
            return True
        theirs = "accepted" if row.rejected is None else f"rejected ({row.rejected})"
        ours = "accepted" if refusal is None else f"rejected ({refusal.code}: {refusal.sentence})"
        self._find(FindingKind.VERDICT, row, column="rejections", theirs=theirs, ours=ours)
        # Resolutions depend on which events are rejected.
        self._memory.resolutions.clear()
        return False

    def _cannot_judge(self, row: SourceEvent, error: Exception) -> None:
        if row.out_of_band:
            self._counts.out_of_band += 1
            self._quarantine(row, "a membership of a room that the server has not joined")
            return
        self._counts.unjudged += 1
        self._quarantine(row, f"cannot be judged: {error}")
        event = self._memory.events.get(row.event_id)
        cited = [] if event is None else list(auth_dependencies(event))
        known = self._view.known_events(cited).events
        self._name_missing(row, "auth_events", [each for each in cited if each not in known])
        self._memory.events.pop(row.event_id, None)

    def _name_missing(self, row: SourceEvent, column: str, missing: Iterable[str]) -> None:
        """Name events that are missing, each once."""
        named = self._auditor.named
        for each in missing:
            if each not in named:
                named[each] = None
                self._find(FindingKind.MISSING_EVENT, row, column=column, ours=each)

    # Results

    def check_redactions(self, events: Mapping[str, Event]) -> None:
        """Compare the recorded targets of redactions."""
        redactions = {
            event_id: event.redacts
            for event_id, event in events.items()
            if event.redacts is not None
        }
        if not redactions:
            return
        recorded = redaction_targets(self._txn, redactions.keys())
        for event_id, target in redactions.items():
            theirs = recorded.get(event_id)
            # Outliers and rejected redactions are not recorded.
            if theirs is not None and theirs != target:
                self._findings.append(
                    ImportFinding(
                        FindingKind.REDACTION,
                        self._room_id,
                        event_id,
                        column="redacts",
                        theirs=theirs,
                        ours=target,
                    )
                )

    def result(self, rows: Sequence[SourceEvent]) -> AuditedBatch:
        """The result of the batch."""
        counts = self._counts
        counts.quarantined = len(self._quarantined)
        self._findings += self._view.findings
        counts.findings = dict(Counter(each.kind.value for each in self._findings))
        last = rows[-1].position if rows else None
        ordered = as_arrived(self._events)
        return AuditedBatch(ordered, self._quarantined, self._findings, counts, last)

    def _import(self, imported: ImportedEvent) -> None:
        self._events.append(imported)
        self._counts.imported += 1
        self._auditor.not_imported.pop(imported.event.event_id, None)

    def _quarantine(self, row: SourceEvent, reason: str) -> None:
        self._quarantined.append(Quarantined(self._room_id, row.event_id, row.raw, reason))
        self._auditor.not_imported[row.event_id] = None

    def _find(
        self,
        kind: FindingKind,
        row: SourceEvent,
        *,
        group: int | None = None,
        key: StateKey | None = None,
        column: str = "",
        theirs: str | None = None,
        ours: str | None = None,
    ) -> None:
        self._findings.append(
            ImportFinding(kind, self._room_id, row.event_id, group, key, column, theirs, ours)
        )


def _trim(
    remembered: dict[str, object] | dict[str, None] | dict[str, frozenset[DifferingEntry]],
) -> None:
    for each in list(islice(remembered, max(0, len(remembered) - _MAX_REMEMBERED))):
        del remembered[each]
