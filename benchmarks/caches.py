"""Hits of cached functions against ``cachetools``; invalidations on a worker, from bytes to caches.

A hit is measured in a loop that does nothing else, and so is the call of the
function that ``cachetools.cached`` decorates. The worker is the one of
``receive.py``, all its work included: lines, rows, positions, gaps.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cachetools
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from benchmarks.harness import Row, Scale, at_most, cpu, interleaved, ratio
from benchmarks.receive import Worker, pieces
from benchmarks.recorded import WRITER
from synrepl.adapters.caches import make_caches
from synrepl.services.coherence.coherence import Coherence
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Fact
from synrepl.streams.rows import RowCodec
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.streams.synapse.caches import CACHES, CachesRow

KEY = "@bob:example.com"
MEMBERS = 1_000


def run(scale: Scale) -> Iterator[Row]:
    """Hits, rows of single keys, and one row that stands for many keys."""
    yield from _hits(scale)
    yield _single_keys(scale)
    yield _many_members(scale)


def _hits(scale: Scale) -> Iterator[Row]:
    calls = scale.of(200_000)
    caches = make_caches()

    @cachetools.cached(cachetools.LRUCache(10_000))
    def lru_cached(user_id: str) -> str:
        return user_id

    @caches.cached(by_name=True)
    def plain(user_id: str) -> str:
        return user_id

    @caches.cached(by_name=True)
    async def coroutine(user_id: str) -> str:
        return user_id

    class Users:
        def __init__(self) -> None:
            self.caches = caches

        @caches.cached(by_name=True)
        async def method(self, user_id: str) -> str:
            return user_id

    method = Users().method

    def called(function: Callable[[str], object]) -> Callable[[], float]:
        def loop() -> None:
            for _ in range(calls):
                function(KEY)

        return lambda: cpu(loop) / calls

    def awaited(function: Callable[[str], Any]) -> Callable[[], float]:
        async def loop() -> None:
            for _ in range(calls):
                await function(KEY)

        return lambda: cpu(lambda: Deferred.fromCoroutine(loop())) / calls

    found = interleaved(
        {
            "theirs": called(lru_cached),
            "plain": called(plain),
            "coroutine": awaited(coroutine),
            "method": awaited(method),
        },
        scale.repetitions,
    )
    for name, side, most in (
        ("hit of a plain function", "plain", 2.0),
        ("hit of a coroutine function, awaited", "coroutine", 5.0),
        ("hit of a coroutine method, awaited", "method", 5.0),
    ):
        yield ratio(
            name,
            found[side],
            found["theirs"],
            of="a hit of cachetools.cached",
            measured_in="ns",
            bound=at_most(most),
            scale=1e9,
        )


def _single_keys(scale: Scale) -> Row:
    """Rows from bytes to caches, against parsing their JSON and removing the keys from a dictionary."""
    rows = scale.of(100_000)
    encode = RowCodec(CACHES).encoder(next(iter(CACHES.generations)))
    keys = [f"@user{number}:example.com" for number in range(rows)]
    encoded = [encode(CachesRow("get_user_by_id", [key], 1490197670513)) for key in keys]
    fed = pieces(
        b"".join(
            b"RDATA caches %b %d %b\n" % (WRITER.encode(), token, row)
            for token, row in enumerate(encoded, 1)
        )
    )

    def ours() -> float:
        caches = make_caches()

        @caches.cached(max_entries=rows, by_name=True)
        def get_user_by_id(user_id: str) -> str:
            return user_id

        for key in keys:
            get_user_by_id(key)
        worker = Worker(caches)
        worker.feed(
            [b"SERVER %b\nPING 1\n" % worker.server, b"POSITION caches %b 0 0\n" % WRITER.encode()]
        )
        seconds = _without_collections(lambda: worker.feed(fed))
        if caches.stats()["get_user_by_id"]["size"]:
            raise AssertionError("entries are left")
        return seconds / rows

    def parsed() -> float:
        cached = {("get_user_by_id", key): key for key in keys}

        def drop() -> None:
            for row in encoded:
                name, (key,), _ = json.loads(row)
                del cached[name, key]

        return _without_collections(drop) / rows

    found = interleaved({"ours": ours, "parsed": parsed}, scale.repetitions)
    return ratio(
        "rows of single keys, from bytes to caches",
        found["ours"],
        found["parsed"],
        of="json.loads and a dictionary",
        measured_in="µs a row",
        bound=at_most(2.5),
        scale=1e6,
    )


def _without_collections(work: Callable[[], object]) -> float:
    """CPU seconds of ``work``, without the garbage that was there before."""
    gc.collect()
    gc.freeze()
    seconds = cpu(work)
    gc.unfreeze()
    return seconds


def _many_members(scale: Scale) -> Row:
    """``cs_cache_fake`` against as many rows of single keys, both as typed rows."""
    caches = make_caches()

    @caches.cached()
    def get_rooms_for_user(user_id: str) -> str:
        return user_id

    @caches.cached(max_entries=2 * MEMBERS)
    def get_user_in_room_with_profile(room_id: str, user_id: str) -> str:
        return user_id

    coherence = Coherence(caches, Catalogue(SYNAPSE_STREAMS), Logger())
    members = [f"@user{number}:example.com" for number in range(MEMBERS)]
    room = "!room:example.com"
    together = [Fact(1, WRITER, (CachesRow("cs_cache_fake", [room, *members], 1),))]
    pairs = [("get_rooms_for_user", [member]) for member in members]
    pairs += [("get_user_in_room_with_profile", [room, member]) for member in members]
    alone = [
        Fact(token, WRITER, (CachesRow(name, key, 1),))
        for token, (name, key) in enumerate(pairs, 1)
    ]

    def applied(facts: Sequence[Fact]) -> Callable[[], float]:
        def measure() -> float:
            for member in members:
                get_rooms_for_user(member)
                get_user_in_room_with_profile(room, member)
            return cpu(lambda: coherence.apply("caches", WRITER, 0, facts)) / len(pairs)

        return measure

    found = interleaved(
        {"together": applied(together), "alone": applied(alone)}, 3 * scale.repetitions
    )
    return ratio(
        f"one cs_cache_fake row of {MEMBERS:,} members",
        found["together"],
        found["alone"],
        of="a row for each key",
        measured_in="µs a key",
        bound=at_most(1.0),
        scale=1e6,
    )
