"""The room rules: the CPU time of each step of an event, and the memory of the states of whole rooms.

Each figure is the CPU time per item, as a multiple of the time that ``json.loads``, ``canonicaljson``
and SHA-256 take for one event of the same room. Every implementation in Python does this work, with
libraries that are not ours. The reference implementation (Synapse 1.163.2) was measured on another
machine, on which ``canonicaljson`` alone takes 4.35 µs for such an event. The time of the whole work on
that machine follows from this (:data:`PACE`), and turns the reference's figures into the same
multiples. The bounds are fractions of them.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256

import canonicaljson
from nacl.bindings import crypto_sign_BYTES
from signedjson.key import generate_signing_key
from unpaddedbase64 import decode_base64

from benchmarks import rooms_growth
from benchmarks.harness import Row, Scale, at_most, cpu, interleaved, ratio, shown
from benchmarks.object_size import size_of
from benchmarks.rooms_data import ConflictedStates, Recorded, conflicted_states, recorded
from synrepl.rooms import (
    Event,
    Room,
    StateKey,
    authorise,
    check_auth_events,
    check_signatures,
    check_state_independent,
    keys_of,
    parse_event,
    resolve,
    sign_event,
)

#: Seconds per event of :func:`pace` on the machine where the reference was measured.
PACE = 8.2e-6

#: Seconds per item that the reference took, by benchmark and room version.
REFERENCE = {
    "resolve 100": {"10": 1.6e-3, "12": 1.5e-3},
    "resolve 1000": {"10": 20.0e-3, "12": 18.5e-3},
    "resolve 5000": {"10": 212.9e-3, "12": 199.5e-3},
    "auth by state": {"10": 1 / 112_430, "12": 1 / 118_082},
    "all checks": {"10": 1 / 40_070, "12": 1 / 41_080},
    "content hash": {"10": 1 / 232_886, "12": 1 / 242_766},
    "parse": {"10": 1 / 70_813, "12": 1 / 73_952},
    "whole room": {"10": 1 / 10_799, "12": 1 / 5_034},
}

#: The fraction of the reference's time that is allowed.
SHARE = {
    "resolve 100": 1 / 2,
    "resolve 1000": 1 / 2,
    "resolve 5000": 1 / 2,
    "auth by state": 1 / 1.5,
    "all checks": 1 / 2,
    "content hash": 1 / 2,
    "parse": 1 / 3,
    "whole room": 1 / 2,
}

#: Events of a room in one measurement of a single step.
_EVENTS = 3_000

#: Number of resolutions in one measurement, by the size of the conflict.
_TIMES = {100: 100, 1000: 8, 5000: 2}


def run(scale: Scale) -> Iterator[Row]:
    """Measure rooms of 5,000 events and large conflicts, as far as there are vectors; then large rooms."""
    for version in "10", "12":
        large = recorded(f"v{version}_chat_5000")
        room = large or recorded(f"v{version}_war_300")
        if room is None:
            continue
        gc.collect()
        gc.freeze()
        yield from _steps(room, scale)
        yield from _signatures(room, scale)
        if large is not None:
            yield from _whole(large, scale)
            yield _memory(large)
        for conflicted in _TIMES:
            yield from _resolution(version, conflicted, room, scale)
        gc.unfreeze()
    yield from rooms_growth.run(scale)


def pace(raw: list[bytes]) -> float:
    """CPU seconds per event of the work that represents the machine's speed."""

    def work() -> None:
        for each in raw:
            sha256(canonicaljson.encode_canonical_json(json.loads(each))).digest()

    return cpu(work) / len(raw)


def _against_pace(
    kind: str, name: str, version: str, ours: Callable[[], float], raw: list[bytes], scale: Scale
) -> Row:
    found = interleaved({"ours": ours, "pace": partial(pace, raw[:1_000])}, scale.repetitions)
    theirs, share = REFERENCE[kind][version], SHARE[kind]
    row = ratio(
        f"{name}, version {version}",
        found["ours"],
        found["pace"],
        of="an event's JSON and hash",
        measured_in="µs",
        bound=at_most(float(f"{theirs * share / PACE:.3g}")),
        scale=1e6,
    )
    detail = f"{row.detail}; the reference took {shown(theirs / PACE)} × ({shown(theirs * 1e6)} µs)"
    return replace(row, detail=detail)


def _steps(room: Recorded, scale: Scale) -> Iterator[Row]:
    """Measure the single steps of an event."""
    count = min(scale.of(_EVENTS), len(room.events))
    events, raw, version = room.events[-count:], room.raw[-count:], room.version
    known = {event.event_id: event for event in room.events}
    named = [[known[each] for each in event.auth_event_ids] for event in events]
    # In versions in which events do not cite the create event, it is examined as well.
    create = [room.events[0]] if version.room_id_is_create_hash else []
    cited = [create + each for each in named]

    def parse() -> None:
        for each in raw:
            parse_event(each, version)

    def content_hash() -> None:
        for event in events:
            event.content_hash()

    def by_state() -> None:
        for event, authors in zip(events, cited, strict=True):
            authorise(event, _state(authors))

    def all_checks() -> None:
        for event, authors, chosen in zip(events, cited, named, strict=True):
            if (
                check_state_independent(event) is None
                and check_auth_events(event, chosen, ()) is None
            ):
                authorise(event, _state(authors))

    steps: dict[str, tuple[str, Callable[[], None]]] = {
        "content hash": ("canonical JSON and content hash", content_hash),
        "parse": ("parse and event ID", parse),
        "auth by state": ("state-dependent auth", by_state),
        "all checks": ("all checks of an event", all_checks),
    }
    for kind, (name, work) in steps.items():
        yield _against_pace(
            kind, name, version.name, partial(_per_item, work, count), room.raw, scale
        )


def _per_item(work: Callable[[], None], count: int) -> float:
    return cpu(work) / count


def _state(events: Iterable[Event]) -> dict[StateKey, Event]:
    return {(each.type, each.state_key): each for each in events}  # type: ignore[misc]


def _signatures(room: Recorded, scale: Scale) -> Iterator[Row]:
    """Compare checking and signing with the library alone on the same bytes."""
    count = min(scale.of(1_000), len(room.events))
    events, keys = room.events[-count:], keys_of(room.keys)
    prepared = []
    for event in events:
        server = event.sender.partition(":")[2]
        key_id, signature = next(iter(event.signatures[server].items()))
        key = keys[server][key_id].verify_key
        prepared.append((key, event.signed_bytes(), decode_base64(signature)))

    def check() -> None:
        for event in events:
            assert check_signatures(event, keys) is None

    def bare_check() -> None:
        for key, signed, signature in prepared:
            key.verify(signed, signature)

    ours = generate_signing_key("1")
    signed_bytes = [event.signed_bytes() for event in events]

    def sign() -> None:
        for event in events:
            sign_event(event.fields, room.version, "x.example", ours)

    def bare_sign() -> None:
        for each in signed_bytes:
            assert len(ours.sign(each).signature) == crypto_sign_BYTES

    for name, work, bare in ("check signatures", check, bare_check), ("sign", sign, bare_sign):
        sides = {"ours": partial(cpu, work), "bare": partial(cpu, bare)}
        found = interleaved(sides, scale.repetitions)
        row = ratio(
            f"{name}, version {room.version.name}",
            found["ours"],
            found["bare"],
            of="the library alone",
            measured_in="µs an event",
            bound=None,
            scale=1e6 / count,
        )
        yield replace(row, detail=f"{row.detail}; ours is {shown(100 - 100 / row.figure)} %")


def _whole(room: Recorded, scale: Scale) -> Iterator[Row]:
    """Measure receiving all events of a room, up to its current state."""

    def whole() -> None:
        assert dict(_room_of(room).current_state()) == room.current

    count = len(room.events)
    yield _against_pace(
        "whole room",
        f"whole room of {count:,} events, an event",
        room.version.name,
        partial(_per_item, whole, count),
        room.raw,
        replace(scale, repetitions=min(scale.repetitions, 5)),
    )


def _room_of(room: Recorded) -> Room:
    made = Room(room.version)
    for event in room.events:
        made.receive(event, live=False)
    return made


def _memory(room: Recorded) -> Row:
    """Compare the memory of the states before and after each event with a ``dict`` for each."""
    made = _room_of(room)
    ours = [state for judged in made for state in (judged.state_before, judged.state_after)]
    distinct = {id(state): state for state in ours if state is not None}
    texts = {id(each) for state in distinct.values() for entry in state.items() for each in entry}
    entries = [dict(state) for state in distinct.values()]
    mine = size_of(list(distinct.values()), texts)
    copies = sum(sys.getsizeof(dict(state)) for state in ours if state is not None)
    of_distinct = sum(map(sys.getsizeof, entries))
    return Row(
        f"state maps of all {len(made):,} events, version {room.version.name}",
        mine / copies,
        "× full copies",
        at_most(0.1),
        None,
        f"{shown(mine / 2**20)} against {shown(copies / 2**20)} MiB"
        f" ({len(distinct):,} are distinct, which as copies have {shown(of_distinct / 2**20)} MiB),"
        " without the keys and IDs themselves",
        {"ours": mine, "other": copies},
    )


def _resolution(version: str, conflicted: int, room: Recorded, scale: Scale) -> Iterator[Row]:
    """Measure resolving two states with ``conflicted`` events in conflict."""
    found = conflicted_states(f"state_res_v{version}_{max(conflicted, 1000)}")
    if found is None:
        return
    if conflicted < 1000:
        found = found.smaller(conflicted)
    _check(found)
    fetch, times = found.events.__getitem__, _TIMES[conflicted]

    def work() -> None:
        for _ in range(times):
            resolve(found.version, found.states, fetch, found.chains)

    yield _against_pace(
        f"resolve {conflicted}",
        f"resolve {conflicted:,} events in conflict",
        version,
        partial(_per_item, work, times),
        room.raw,
        scale,
    )


def _check(found: ConflictedStates) -> None:
    resolved: Mapping[StateKey, str] = resolve(
        found.version, found.states, found.events.__getitem__, found.chains
    )
    assert found.resolved is None or dict(resolved) == found.resolved
