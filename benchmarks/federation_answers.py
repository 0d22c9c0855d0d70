"""Large answers of other servers, and the signatures of events: what of the work is the libraries'."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from functools import partial
from io import BytesIO

from signedjson.key import generate_signing_key, get_verify_key
from unpaddedbase64 import decode_base64

from benchmarks.harness import Row, Scale, at_most, cpu, interleaved, ratio
from synrepl.federation.event_scanner import CHUNK, index_object, read_elements
from synrepl.federation.x_matrix import parse_x_matrix, sign_request, verify_request
from synrepl.rooms import (
    Event,
    EventBuilder,
    EventDraft,
    Keys,
    ServerKey,
    check_on_receipt,
    room_version,
)

#: Events of an answer: some 50 MB.
_EVENTS = 85_000

#: Events whose signatures are verified.
_SIGNED = 3_000

_VERSION = room_version("11")
_ROOM = "!room:a.example"


def run(scale: Scale) -> Iterator[Row]:
    """The scanner, the checks of events, and the header of requests."""
    events, keys = signed_events(scale.of(_SIGNED))
    yield from scanning(events, scale)
    yield from verifying(events, keys, scale)
    yield from requests(scale)


def signed_events(count: int) -> tuple[list[Event], Keys]:
    """Memberships of a room, signed by its server, and the server's keys."""
    key = generate_signing_key("1")
    builder = EventBuilder(_VERSION, "a.example", key)
    create = EventDraft("m.room.create", "@u:a.example", {"room_version": "11"}, 1, "")
    first = builder.create(create, _ROOM)
    events = []
    for number in range(count):
        user_id = f"@user{number}:a.example"
        content = {"membership": "join", "displayname": f"User number {number}"}
        draft = EventDraft("m.room.member", user_id, content, number, user_id)
        events.append(builder.assemble(draft, _ROOM, [first], [first]))
    return events, {"a.example": {"ed25519:1": ServerKey(get_verify_key(key))}}


def scanning(events: list[Event], scale: Scale) -> Iterator[Row]:
    """Finding the events of an answer, and memory while it is done."""
    wanted = scale.of(_EVENTS)
    raws = [events[number % len(events)].raw for number in range(wanted)]
    for style, comma in (("compact", b","), ("with spaces", b", ")):
        document = b'{"state":[' + comma.join(raws) + b'],"auth_chain":[]}'

        def scan(document: bytes = document) -> None:
            body = BytesIO(document)
            found = index_object(body, ("state", "auth_chain"))
            for _ in read_elements(body, found.arrays["state"]):
                pass

        sides = {"ours": partial(cpu, scan), "other": partial(cpu, partial(json.loads, document))}
        found = interleaved(sides, scale.repetitions)
        yield ratio(
            f"find and read the events of an answer, {style}",
            [seconds / wanted for seconds in found["ours"]],
            [seconds / wanted for seconds in found["other"]],
            of="json.loads of it",
            measured_in=f"µs an event, {len(document) / 1e6:.0f} MB",
            bound=at_most(0.5),
            scale=1e6,
        )
        tracemalloc.start()
        scan()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        yield Row(f"memory of the same, {style}", peak / CHUNK, "× a chunk of 64 KiB", at_most(8.0))


def verifying(events: list[Event], keys: Keys, scale: Scale) -> Iterator[Row]:
    """Checks 1 to 3 of events, and libsodium's part of them."""
    raws = [event.raw for event in events]
    verify_key = keys["a.example"]["ed25519:1"].verify_key
    signed = [
        (event.signed_bytes(), decode_base64(event.signatures["a.example"]["ed25519:1"]))
        for event in events
    ]

    def check() -> None:
        for raw in raws:
            check_on_receipt(raw, _VERSION, keys)

    def library() -> None:
        for data, signature in signed:
            verify_key.verify(data, signature)

    sides = {"ours": partial(cpu, check), "other": partial(cpu, library)}
    found = interleaved(sides, scale.repetitions)
    yield ratio(
        "checks 1 to 3 of an event",
        [seconds / len(raws) for seconds in found["ours"]],
        [seconds / len(raws) for seconds in found["other"]],
        of="the library's check of its signature",
        measured_in="µs",
        bound=at_most(2.0),
        scale=1e6,
    )


def requests(scale: Scale) -> Iterator[Row]:
    """The header of a request: read and verified."""
    times = scale.of(_SIGNED)
    key = generate_signing_key("1")
    public = ServerKey(get_verify_key(key))
    content = b'{"pdus":[%b]}' % b",".join([b'{"a":"%b"}' % (b"x" * 500)] * 10)
    path = "/_matrix/federation/v1/send/1"
    header = sign_request(key, "PUT", path, "a.example", "b.example", content)
    signature = decode_base64(parse_x_matrix([header], "b.example").signature)
    message = b"x" * len(content)
    other = key.sign(message).signature

    def verify() -> None:
        for _ in range(times):
            parsed = parse_x_matrix([header], "b.example")
            verify_request(parsed, public, "PUT", path, "b.example", content, 0)

    def library() -> None:
        for _ in range(times):
            public.verify_key.verify(message, other)

    assert len(signature) == len(other)
    sides = {"ours": partial(cpu, verify), "other": partial(cpu, library)}
    found = interleaved(sides, scale.repetitions)
    yield ratio(
        "read and verify the header of a request",
        [seconds / times for seconds in found["ours"]],
        [seconds / times for seconds in found["other"]],
        of="the library's check of as many bytes",
        measured_in="µs",
        bound=at_most(2.0),
        scale=1e6,
    )
