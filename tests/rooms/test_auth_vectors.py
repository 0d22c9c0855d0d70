"""The auth rules against vectors: whole events of every version, and what others publish."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from twisted.trial.unittest import TestCase

from synrepl.rooms.auth.authorise import authorise
from synrepl.rooms.auth.selection import check_auth_events
from synrepl.rooms.auth.state_independent import check_state_independent
from synrepl.rooms.event import BadEvent, Event, event_of
from synrepl.rooms.state import StateKey
from synrepl.rooms.versions import RoomVersion, room_version
from tests.rooms import vector_files

Row = dict[str, Any]

#: Notes of vectors in which the specification says otherwise, or nothing: the reference is followed.
FOLLOWED = {
    "the reference accepts digit group underscores",
    "before v10 the reference takes booleans for integers",
    "the reference also rejects a foreign target; the specification looks at the sender only",
}


def _state(events: Iterable[Event]) -> dict[StateKey, Event]:
    return {(event.type, event.state_key): event for event in events if event.state_key is not None}


def _with_creation(
    event: Event, cited: list[Event], known: Callable[[str], Event | None]
) -> list[Event]:
    """What an event cites, and the creation, which the room's ID cites in version 12."""
    if not event.version.room_id_is_create_hash:
        return cited
    creation = known("$" + event.room_id[1:])
    return cited if creation is None else [creation, *cited]


class Case:
    """One row of ``auth/random_*``."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.version: RoomVersion = room_version(row["room_version"])
        self.event = event_of(row["event"], self.version)

    def known(self, event_id: str) -> Event | None:
        fields = self.row["events"].get(event_id)
        return None if fields is None else event_of(fields, self.version)

    def events(self, ids: Iterable[str]) -> list[Event]:
        return [event for each in ids if (event := self.known(each)) is not None]

    def judge(self, check: str) -> str:
        """``allow``, or the code of the refusal."""
        cited = self.events(self.event.auth_event_ids)
        if check == "own":
            refusal = check_state_independent(self.event) or check_auth_events(
                self.event, cited, set(self.row["rejected_event_ids"])
            )
        elif check == "state":
            refusal = authorise(self.event, _state(self.events(self.row["state_event_ids"])))
        elif any(event.state_key is None for event in cited):
            return "cites no state"
        else:
            refusal = authorise(self.event, _state(_with_creation(self.event, cited, self.known)))
        return "allow" if refusal is None else refusal.code


class RandomVectors(TestCase):
    """Generated events, each by what it is, by what it cites, and by the state before it."""

    def test_verdicts_equal_those_of_the_vectors(self) -> None:
        for name in vector_files.files("auth/random_*"):
            wrong, asserted, others = [], 0, 0
            for row in vector_files.lines(name):
                if row.get("normative") is False and row["note"] not in FOLLOWED:
                    others += 1
                    continue
                asserted += 1
                wrong += _differences(row)
            self.assertEqual(wrong, [], name)
            self.assertGreater(asserted, others)


def _differences(row: Row) -> list[tuple[str, ...]]:
    try:
        case = Case(row)
    except BadEvent as error:
        # No state to judge: what is no event is dropped, whatever the rules would say.
        return [] if row["expected"] == "reject" else [(row["id"], row["kind"], str(error))]
    return [
        (row["id"], row["kind"], check, verdict, expected, str(row["reason"]))
        for check, expected in row["expected_by_check"].items()
        if ((verdict := case.judge(check)) == "allow") != (expected == "allow")
    ]


class PublishedVectors(TestCase):
    """What other projects publish."""

    def test_verdicts_equal_those_of_the_vectors(self) -> None:
        for name in vector_files.files("auth/published_*"):
            wrong = []
            for row in vector_files.lines(name):
                if row.get("normative") is False:
                    continue
                verdict = _judge_published(row)
                if (verdict == "allow") != (row["expected"] == "allow"):
                    wrong.append((row["id"], row["kind"], verdict, row["expected"], row["reason"]))
            self.assertEqual(wrong, [], name)


def _judge_published(row: Row) -> str:
    version = room_version(row["room_version"])
    try:
        event = event_of(row["event"], version)
        if row["kind"] == "state_independent":
            cited = [event_of(each["event"], version) for each in row["auth_events"]]
            refusal = check_auth_events(event, cited, set())
        else:
            state = _state(event_of(each["event"], version) for each in row["state"])
            refusal = authorise(event, state)
            if event.is_create:
                refusal = check_state_independent(event)
    except BadEvent as error:
        return str(error)
    return "allow" if refusal is None else refusal.code
