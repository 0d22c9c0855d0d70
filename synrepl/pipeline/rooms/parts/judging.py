"""Judges the events of one part of a room again, by the pure rules, in a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from synrepl.pipeline.rooms.lookup import RoomLookup
from synrepl.pipeline.rooms.parts.view import JudgingVersions, PartView, StateCorrection
from synrepl.rooms import (
    CANNOT_JUDGE,
    BadEvent,
    CompactStateMap,
    Delta,
    Event,
    Judged,
    auth_dependencies,
    delta,
    judge,
    topological_sort,
)

#: Events for which what they depend on is looked up at once.
_AHEAD = 500


class PartRow(NamedTuple):
    """An event of a part, as the database has it.

    :ivar place: topological and stream ordering
    :ivar group_before: the state group before it, if the database records that
    :ivar group: the state group after it
    """

    event_id: str
    place: tuple[int, int]
    rejected: bool
    group_before: int | None
    group: int | None
    raw: bytes | None


class JudgedRow(NamedTuple):
    """An event that was judged again.

    :ivar event: None if the stored JSON is no event
    :ivar judged: None if it could not be judged
    :ivar problem: why not
    :ivar base_id: the first of its prev events with a state, from which the states of most events differ little
    :ivar base: the state after that; the empty state without one
    :ivar given: a prev event is missing, so that the state before it was taken from the database
    """

    row: PartRow
    event: Event | None
    judged: Judged[CompactStateMap] | None
    problem: str | None
    base_id: str | None
    base: CompactStateMap
    given: bool

    def changes(self) -> Delta:
        """The delta from the base to the state after the event."""
        assert self.judged is not None
        assert self.judged.state_after is not None
        return delta(self.base, self.judged.state_after)


def _nothing(rows: Sequence[PartRow]) -> None:
    """Prepare nothing."""


class PartJudging:
    """Judges one part.

    :param rows: in any order, without outliers
    :ivar view: of the part
    """

    def __init__(
        self,
        room_id: str,
        versions: JudgingVersions,
        rows: Sequence[PartRow],
        lookup: RoomLookup,
        corrections: Sequence[StateCorrection] = (),
    ) -> None:
        self._room_id = room_id
        self._versions = versions
        self._rows = sorted(rows, key=lambda row: row.place)
        self.view = PartView(room_id, versions, lookup, corrections)

    def run(self, prepare: Callable[[Sequence[PartRow]], None] = _nothing) -> Iterator[JudgedRow]:
        """Judge the events, each after those that it follows.

        :param prepare: is called with the next few before they are judged
        """
        events: dict[str, Event] = {}
        bad: list[JudgedRow] = []
        corrupt = self.view.corrupt
        for row in self._rows:
            try:
                events[row.event_id] = self._parsed(row)
            except BadEvent as error:
                corrupt.add(row.event_id)
                bad.append(self._unjudged(row, None, str(error)))
        yield from bad
        self.view.expect(events, {row.event_id for row in self._rows if row.rejected})
        rows = [row for row in self._rows if row.event_id in events]
        ordered = _in_order(rows, events)
        for start in range(0, len(ordered), _AHEAD):
            some = ordered[start : start + _AHEAD]
            dependencies = [auth_dependencies(events[row.event_id]) for row in some]
            self.view.known_events(set().union(*dependencies))
            prepare(some)
            for row in some:
                yield self._judged(row, events[row.event_id])

    def _parsed(self, row: PartRow) -> Event:
        if row.raw is None:
            raise BadEvent(version=self._versions.format.name, reason="there is no JSON of it")
        return self._versions.parse(row.raw, row.event_id, self._room_id)

    def _judged(self, row: PartRow, event: Event) -> JudgedRow:
        view = self.view
        parents = event.prev_event_ids
        places = view.states_at(parents)
        base_id, is_given, given = None, False, None
        for each in parents:
            if each not in places:
                is_given = True
            elif base_id is None:
                base_id = each
        if is_given:
            given = self._given_state(row, event)
        base = view.empty_state
        if base_id is not None:
            base = places[base_id].state_after or base
        try:
            judged: Judged[CompactStateMap] = judge(
                event, view, given, live=False, stream=row.place[1], cache=view.resolutions
            )
        except CANNOT_JUDGE as error:
            return self._unjudged(row, event, str(error))
        after = judged.state_after
        assert after is not None
        rejected = judged.refusal is not None
        view.remember(event, rejected=rejected, state=after, topological=judged.topological)
        return JudgedRow(row, event, judged, None, base_id, base, is_given)

    def _unjudged(self, row: PartRow, event: Event | None, problem: str) -> JudgedRow:
        return JudgedRow(row, event, None, problem, None, self.view.empty_state, False)

    def _given_state(self, row: PartRow, event: Event) -> CompactStateMap | None:
        """The state before an event whose prev events are missing, from the database."""
        groups = self.view.groups
        if row.group_before is not None:
            groups.read([row.group_before])
            return groups.state(row.group_before)
        if row.group is None:
            return None
        groups.read([row.group])
        after = groups.state(row.group)
        if after is None or event.state_key is None or row.rejected:
            return after
        prev = groups.prev(row.group)
        near = None if prev is None else groups.state(prev)
        return self.view.state_without(event, after, near)


def _in_order(rows: list[PartRow], events: dict[str, Event]) -> list[PartRow]:
    """The rows, each after those that it follows; those in a cycle come last."""
    remaining = set(events)
    for row in rows:
        remaining.discard(row.event_id)
        if not remaining.isdisjoint(events[row.event_id].prev_event_ids):
            break
    else:
        return rows
    by_id = {row.event_id: row for row in rows}
    ordered = topological_sort(
        events.values(), tie_break=lambda event: (by_id[event.event_id].place[0], event.event_id)
    )
    return [by_id[each.event_id] for each in ordered.events + ordered.in_cycles]
