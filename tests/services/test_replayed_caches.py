"""The ``caches`` rows of three real servers, line by line into a real follower.

Before every row its key is loaded, and one that nobody ever names; after it the
first must be gone and the other be there still.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from synrepl.adapters.caches import make_caches
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.adapters.tcp.worker import WorkerFactory
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.following.delivery import Delivery
from synrepl.services.following.follower import Follower
from synrepl.storage.memory.store import MemoryStore
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.wire.dialects import LEGACY, MODERN, Dialect, Side
from tests.services.test_serve import ConnectionLostReason, Transport
from tests.services.world import RecordingLog, manual_clock
from tests.wire.recordings import genuine_lines

#: Caches that a change of a room's state concerns, by what their keys are made of.
BY_ROOM = ("get_users_in_room", "get_current_state_ids", "get_room_summary")
BY_MEMBER = ("get_rooms_for_user",)
BY_ROOM_AND_MEMBER = ("get_user_in_room_with_profile",)

#: What the recordings name: that they are read whole, and all is counted.
NAMED = {
    "1.11.1": {
        "cs_cache_fake": 417,
        "count_e2e_one_time_keys": 26,
        "get_aliases_for_room": 20,
        "get_if_user_has_pusher": 20,
        "_get_bare_e2e_cross_signing_keys": 18,
        "get_user_by_id": 11,
        "get_forgotten_rooms_for_user": 4,
        "get_user_by_access_token": 3,
        "did_forget": 2,
        "get_user_deactivated_status": 1,
    },
    "1.43.0": {
        "cs_cache_fake": 433,
        "_get_state_group_for_event": 106,
        "have_seen_event": 33,
        "_get_bare_e2e_cross_signing_keys": 24,
        "get_if_user_has_pusher": 21,
        "count_e2e_one_time_keys": 18,
        "get_user_by_id": 13,
        "get_aliases_for_room": 13,
        "get_forgotten_rooms_for_user": 5,
        "did_forget": 4,
        "get_user_by_access_token": 2,
        "get_e2e_unused_fallback_key_types": 2,
        "is_room_blocked": 1,
        "get_user_deactivated_status": 1,
        "get_device_list_last_stream_id_for_remote": 1,
    },
}

#: Of the third, which names more: how many rows in all, and of the most frequent names.
ON_REDIS = {"cs_cache_fake": 301, "get_device": 44, "count_e2e_one_time_keys": 35}
ROWS_ON_REDIS = 541


class ReplayingRecordedCaches(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock, self.log = manual_clock(), RecordingLog()
        self.caches = make_caches()
        self.get: dict[str, Any] = {}
        self.arity: dict[str, int] = {}
        self.counted: Counter[str] = Counter()

    def replay(self, version: str, name: str, dialect: Dialect) -> None:
        lines = [
            line.decode()
            for side, line in genuine_lines(version, name)
            if side is Side.SERVER or line.startswith((b"RDATA caches ", b"POSITION caches "))
        ]
        rows = [row_of(line) for line in lines if line.startswith("RDATA caches ")]
        self.declare(rows)
        self.connect(dialect)
        for line in lines:
            self.feed(line)
        found = self.coherence
        self.assertEqual(found.invalidations, self.counted)
        self.assertEqual((found.unknown, found.bad, found.emptied), (0, 0, 0))
        self.assertEqual(sum(self.follower.counts.rows.values()), len(rows))
        self.assertEqual([text for level, text in self.log.lines if level == "warn"], [])

    def declare(self, rows: list[tuple[str, Any]]) -> None:
        """A cache for each name in the rows, with as many arguments as their keys."""
        arity = dict.fromkeys((*BY_ROOM, *BY_MEMBER), 1) | {BY_ROOM_AND_MEMBER[0]: 2}
        for name, keys in rows:
            if name != "cs_cache_fake":
                arity[name] = max(len(keys or ()), arity.get(name, 1))
        for name, count in arity.items():
            function = (lambda a: [a]) if count == 1 else (lambda a, b: [a, b])
            assert count <= 2, name
            self.get[name] = self.caches.cached(name=name, by_name=True, tree=True)(function)
            self.arity[name] = count

    def connect(self, dialect: Dialect) -> None:
        """A follower of the caches stream only, from now on, with an empty source."""
        scheduler = TwistedScheduler(self.clock)
        catalogue = Catalogue(SYNAPSE_STREAMS)
        self.coherence = Coherence(self.caches, catalogue, self.log, ["caches"])
        delivery = Delivery(scheduler, [], self.log, coherence=self.coherence)
        self.follower = Follower(
            scheduler,
            catalogue,
            MemoryStore(scheduler),
            delivery,
            self.log,
            ["caches"],
            earliest=False,
            foreign=True,
        )
        factory = WorkerFactory(scheduler, self.follower, "test", None, dialect, self.log.info)
        self.peer: Any = factory.buildProtocol(None)
        self.peer.makeConnection(Transport())
        self.addCleanup(self.peer.connectionLost, ConnectionLostReason)
        self.feed("SERVER example.org")

    def feed(self, line: str) -> None:
        """Process one line, and check that its row invalidates what it names."""
        if line.startswith("SERVER") and self.peer.session.peer_server is not None:
            return
        if not line.startswith("RDATA caches "):
            self.receive(line)
            return
        name, keys = row_of(line)
        self.counted[name] += 1
        concerned = []
        for cache, part in concerned_by(name, keys):
            missing = self.arity[cache] - len(part)  # part of a key stands for all that begin so
            concerned.append((cache, (*part, *["@anybody:x"] * missing)))
        for cache, key in concerned:
            self.get[cache](*key)
            self.get[cache](*nobody(len(key)))
        self.receive(line)
        for cache, key in concerned:
            (held,) = self.caches.named(cache)
            self.assertNotIn(key, held.entries, line)
            self.assertEqual(nobody(len(key)) in held.entries, keys is not None, line)

    def receive(self, line: str) -> None:
        self.peer.dataReceived(line.encode() + b"\n")
        self.assertFalse(self.peer.session.closing, line)

    def test_replays_a_legacy_recording(self) -> None:
        self.replay("1.11.1", "live", LEGACY)
        self.assertEqual(self.counted, NAMED["1.11.1"])

    def test_replays_a_modern_recording(self) -> None:
        self.replay("1.43.0", "live", MODERN)
        self.assertEqual(self.counted, NAMED["1.43.0"])

    def test_replays_a_recording_of_eight_processes_on_redis(self) -> None:
        """Replayed as the modern dialect, in which these commands are the same."""
        self.replay("1.163.2", "redis", MODERN)
        self.assertEqual(dict(self.counted.most_common(3)), ON_REDIS)
        self.assertEqual(self.counted.total(), ROWS_ON_REDIS)
        self.assertEqual(len(self.follower.positions), 8)


def row_of(line: str) -> tuple[str, Any]:
    """Name and keys of a row of ``caches``; None for the whole cache."""
    name, keys, _ = json.loads(line[line.index("[") :])
    return name, keys


def concerned_by(name: str, keys: list[Any] | None) -> list[tuple[str, tuple[Any, ...]]]:
    """Entries that a row invalidates: its own, or some of those of an expansion."""
    if keys is None:
        return [(name, ())]
    if name != "cs_cache_fake":
        return [(name, tuple(keys))]
    room, *members = keys
    by_room = BY_ROOM if members else BY_ROOM[1:]
    return [
        *((cache, (room,)) for cache in by_room),
        *((cache, (member,)) for cache in BY_MEMBER for member in members),
        *((cache, (room, member)) for cache in BY_ROOM_AND_MEMBER for member in members),
    ]


def nobody(arity: int) -> tuple[str, ...]:
    """A key that is in no recording."""
    return ("@nobody:nowhere",) * arity
