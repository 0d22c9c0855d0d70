"""The fuzzing targets and their seeds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from synrepl.core.jsons import encode
from synrepl.rooms import (
    ROOM_VERSIONS,
    Event,
    OtherRoom,
    ReceiptVerdict,
    Room,
    StateKey,
    Viewer,
    audience_of,
    auth_event_keys,
    authorise,
    check_auth_events,
    check_on_receipt,
    check_state_independent,
    content_hash,
    effect_of_redaction,
    event_of,
    keys_of,
    membership_after,
    parse_event,
    redact,
    reference_hash,
    resolve,
    server_memberships_at,
    visible_to_server,
    visible_to_user,
)
from tests.fuzz import federation, partial_rooms
from tests.fuzz.inputs import (
    SMALL,
    Target,
    Wrong,
    cited_by,
    document_of,
    event_citing,
    event_in,
    events_in,
    followed_by,
    list_of,
    rows_of,
    with_auth_chains,
)
from tests.rooms.vector_files import files, lines


def _parse_event(data: bytes) -> None:
    document, version = document_of(data)
    raw = json.dumps(document.get("event"), ensure_ascii=False).encode()
    event = parse_event(raw, version)
    if event.raw != raw:
        raise Wrong("the bytes are not those that came")
    if event_of(event.fields, version).event_id != event.event_id:
        raise Wrong("another event ID on the second reading")
    _ = event.redacts, event.signatures, event.content_hash(), event.signed_bytes()
    check_state_independent(event)


def _parse_event_seeds() -> Iterator[bytes]:
    for row in rows_of("events/*"):
        if row["room_version"] in ROOM_VERSIONS and "event" in row:
            yield encode({"version": row["room_version"], "event": row["event"]})


def _received(data: bytes) -> None:
    document, version = document_of(data)
    raw = json.dumps(document.get("event"), ensure_ascii=False).encode()
    outcome = check_on_receipt(raw, version, keys_of(document.get("keys", {})))
    encode(outcome.refusal and list(outcome.refusal))
    if (outcome.event is None) != (outcome.verdict is ReceiptVerdict.DROP):
        raise Wrong("dropped, or not?")


def _received_seeds() -> Iterator[bytes]:
    for row in rows_of("events/tampered*"):
        document = {"event": row["event"], "keys": row["verify_keys"]}
        yield encode({"version": row["room_version"], **document})


def _redacted(data: bytes) -> None:
    document, version = document_of(data)
    event = document.get("event")
    if not isinstance(event, dict):
        return
    once = redact(event, version)
    if redact(once, version) != once:
        raise Wrong("redacting twice is not redacting once")
    content_hash(event)
    if reference_hash(event, version) != reference_hash(once, version):
        raise Wrong("redacting changes the reference hash")


def _redacted_seeds() -> Iterator[bytes]:
    for row in rows_of("events/*", "redaction/*"):
        event = row.get("event") or row.get("input") or row.get("target")
        yield encode({"version": row["room_version"], "event": event})


def _authorise(data: bytes) -> None:
    document, version = document_of(data)
    event = event_in(document.get("event"), version)
    state = {}
    for each in events_in(document.get("state"), version):
        if each.state_key is not None:
            state[each.type, each.state_key] = each
    cited = list(events_in(document.get("cited"), version))
    for refusal in (
        check_state_independent(event),
        authorise(event, state),
        check_auth_events(event, cited, ()),
    ):
        encode(refusal and list(refusal))
    keys = auth_event_keys(event)
    if len(set(keys)) != len(keys):
        raise Wrong("a key is wanted twice")
    asked: set[StateKey] = set()
    recorder: Any = _KeyRecorder(state, asked)
    if authorise(event, recorder) != authorise(event, state):
        raise Wrong("two answers to one question")
    if missing := asked - {*keys, ("m.room.create", "")}:
        raise Wrong(f"asks for {missing}, which it does not want")


class _KeyRecorder:
    """A state that records the requested keys."""

    def __init__(self, state: Mapping[StateKey, Event], asked: set[StateKey]) -> None:
        self._state = state
        self._asked = asked

    def get(self, key: StateKey) -> Event | None:
        self._asked.add(key)
        return self._state.get(key)


def _authorise_seeds() -> Iterator[bytes]:
    for row in rows_of("auth/random_*", every=80):
        events = row["events"]
        yield encode(
            {
                "version": row["room_version"],
                "event": row["event"],
                "state": [events[each] for each in row["state_event_ids"]],
                "cited": [events[each] for each in row["auth_event_ids"] if each in events],
            }
        )


def _resolve(data: bytes) -> None:
    """Events cite one another by number, so that citations survive changes of the events."""
    document, version = document_of(data)
    known: dict[str, Event] = {}
    ids: list[str] = []
    for each in list_of(document.get("events")):
        event = event_citing(each, ids, version)
        ids.append(event.event_id)
        known.setdefault(event.event_id, event)
    state_sets = []
    for numbers in list_of(document.get("sets")):
        state: dict[StateKey, str] = {}
        for number in list_of(numbers):
            if isinstance(number, int) and 0 <= number < len(ids):
                event = known[ids[number]]
                if event.state_key is not None:
                    state[event.type, event.state_key] = event.event_id
        state_sets.append(state)
    found = resolve(version, state_sets[:5], known.__getitem__)
    if dict(resolve(version, state_sets[:5][::-1], known.__getitem__)) != dict(found):
        raise Wrong("the order of the states matters")
    for (kind, key), event_id in found.items():
        if (known[event_id].type, known[event_id].state_key) != (kind, key):
            raise Wrong("an entry of another key")


def _resolve_seeds() -> Iterator[bytes]:
    for row in rows_of("state_res/random_*"):
        events = {line["event_id"]: line["event"] for line in row["events"]}
        for case in row["cases"][:1]:
            sets = [_essential(states) for states in case["state_sets"]]
            wanted_ids = {event_id for states in sets for event_id in states}
            chosen = with_auth_chains(wanted_ids, events)
            ids = [event_id for event_id in events if event_id in chosen]
            number = {event_id: place for place, event_id in enumerate(ids)}
            yield encode(
                {
                    "version": row["room_version"],
                    "events": [
                        {
                            "event": {**events[each], "auth_events": [], "prev_events": []},
                            "cites": [number[cited] for cited in cited_by(events[each])],
                        }
                        for each in ids
                    ],
                    "sets": [[number[each] for each in states] for states in sets],
                }
            )


def _essential(state: list[list[str]]) -> list[str]:
    """The events of a state that authorise others, and a few more."""
    members = [entry[2] for entry in state if entry[0] == "m.room.member"]
    return [entry[2] for entry in state if entry[0] in _DECIDING] + members[:4]


_DECIDING = ("m.room.create", "m.room.power_levels", "m.room.join_rules", "m.room.topic")


def _visibility(data: bytes) -> None:
    document, version = document_of(data)
    event = event_in(document.get("event"), version)
    before = {}
    for each in events_in(document.get("state"), version):
        if each.state_key is not None:
            before[each.type, each.state_key] = each
    user = document.get("user")
    viewer = Viewer(user if isinstance(user, str) else "@a:x", bool(document.get("peeking")))
    audience = audience_of(event, before, soft_failed=bool(document.get("soft_failed")))
    verdict = visible_to_user(audience, viewer, membership_after(event, before, viewer.user))
    presence = server_memberships_at(event, before)
    for server in (*presence, "elsewhere"):
        encode(visible_to_server(audience, server, presence).explain(server))
    encode(verdict.explain(viewer.user))


def _visibility_seeds() -> Iterator[bytes]:
    for row in rows_of("visibility/*"):
        for line in row["events"][10:20]:
            state = [each["event"] for each in row["events"] if "state_key" in each["event"]]
            yield encode(
                {
                    "version": row["room_version"],
                    "event": line["event"],
                    "state": state[:8],
                    "user": row["client_cases"][0]["user"],
                    "peeking": False,
                }
            )


def _effect(data: bytes) -> None:
    document, version = document_of(data)
    redaction, target = (event_in(document.get(name), version) for name in ("redaction", "target"))
    state = {}
    for each in events_in(document.get("state"), version):
        if each.state_key is not None:
            state[each.type, each.state_key] = each
    effect = effect_of_redaction(redaction, target, state)
    if (effect.redacted is not None) != effect.why.applies:
        raise Wrong("applied, or not?")


def _effect_seeds() -> Iterator[bytes]:
    for row in rows_of("redaction/effect*", every=8):
        document = {name: row[name] for name in ("redaction", "target", "state")}
        yield encode({"version": row["room_version"], **document})


def _room(data: bytes) -> None:
    """Events follow and cite one another by number; those that come too early wait."""
    document, version = document_of(data)
    room = Room(version, max_waiting=4)
    ids: list[str] = []
    events = []
    for each in list_of(document.get("events")):
        event = event_citing(each, ids, version)
        ids.append(event.event_id)
        events.append(event)
    order = [each for each in list_of(document.get("order")) if isinstance(each, int)]
    for number in [*order, *range(len(events))]:
        if 0 <= number < len(events):
            # Only what is of another room may be refused.
            with suppress(OtherRoom):
                room.receive(events[number])
    if not room.forward_extremities <= set(ids):
        raise Wrong("an extremity that never came")
    for (kind, key), event_id in room.current_state().items():
        event = room[event_id].event
        if (event.type, event.state_key) != (kind, key) or not room[event_id].accepted:
            raise Wrong("an entry that cannot be")


def _room_seeds() -> Iterator[bytes]:
    for name in [*files("dags/*_30*"), *files("dags/*_60*")]:
        head, *rows = islice(lines(name), SMALL)
        number = {row["event_id"]: place for place, row in enumerate(rows)}
        yield encode(
            {
                "version": head["room_version"],
                "events": [
                    {
                        "event": row["event"],
                        "cites": [number[each] for each in cited_by(row["event"])],
                        "follows": [number[each] for each in followed_by(row["event"])],
                    }
                    for row in rows
                ],
                "order": [5, 4, 20, 12],
            }
        )


TARGETS: Mapping[str, Target] = {
    "parse_event": Target(_parse_event, _parse_event_seeds),
    "received": Target(_received, _received_seeds),
    "redacted": Target(_redacted, _redacted_seeds),
    "authorise": Target(_authorise, _authorise_seeds),
    "resolve": Target(_resolve, _resolve_seeds),
    "effect": Target(_effect, _effect_seeds),
    "room": Target(_room, _room_seeds),
    "partial": Target(partial_rooms.run, partial_rooms.seeds),
    "visibility": Target(_visibility, _visibility_seeds),
    "answer": Target(federation.scan, federation.scan_seeds),
    "documents": Target(federation.read, federation.read_seeds),
    "header": Target(federation.header, federation.header_seeds),
}
