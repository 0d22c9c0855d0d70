"""INVALIDATE_CACHE of a legacy worker is applied on the master and streamed to all workers."""

from __future__ import annotations

from typing import Any

from synrepl.adapters.tcp.master import MasterFactory
from synrepl.core.tokens import Range
from synrepl.services.coherence.invalidation_relay import (
    MAX_WAITING,
    ROWS_OF_A_FACT,
    TooManyInvalidations,
)
from synrepl.services.serving.master import Master
from synrepl.streams.definition import Fact
from synrepl.streams.synapse.caches import CACHES
from synrepl.wire.commands import Command, InvalidateCache
from tests.services.coherent_master import CATALOGUE, CoherentMasterCase
from tests.services.world import done


class RelayingInvalidations(CoherentMasterCase):
    def setUp(self) -> None:
        super().setUp()
        self.asking = self.client("NAME old", "REPLICATE caches NOW")

    def facts(self) -> list[Fact]:
        page = self.site.store.page(CACHES, Range(0, 2**62), None, 1_000)
        return list(done(page).facts)

    def keys(self) -> list[list[Any]]:
        """The keys of each fact."""
        return [[row.keys for row in fact.rows] for fact in self.facts()]  # type: ignore[attr-defined]

    def test_applies_an_invalidation_and_streams_it_to_all(self) -> None:
        other = self.client("REPLICATE")
        self.asking.send('INVALIDATE_CACHE get_user ["@a"]')
        self.assertEqual(self.site.cached("get_user"), [("@b",)])
        self.assertEqual(other.rows(), ['RDATA caches master 1 ["get_user",["@a"],0]'])
        # As from a real master: the one who asked hears of it too.
        self.assertEqual(self.asking.rows(), ['RDATA caches 1 ["get_user",["@a"],0]'])
        self.assertEqual([command.verb for command in self.site.events], ["INVALIDATE_CACHE"])

    def test_a_synapse_pseudo_cache_is_expanded_to_its_caches(self) -> None:
        rooms = self.site.caches.index("caches", "room_state")
        self.site.coherence.apply("caches", "master", 0, [Fact(1, "master", ())])
        self.asking.send('INVALIDATE_CACHE cs_cache_fake ["!r", "@a:x"]')
        self.assertEqual(rooms.all_since(rooms.horizon or 0), ["!r"])

    def test_the_empty_key_invalidates_the_whole_cache(self) -> None:
        self.asking.send("INVALIDATE_CACHE get_user []")
        self.assertEqual((self.keys(), self.site.cached("get_user")), ([[None]], []))

    def test_an_invalid_command_closes_the_connection(self) -> None:
        for line, reason in (
            ("INVALIDATE_CACHE cs_cache_fake []", "cache name 'cs_cache_fake' needs a list"),
            ("INVALIDATE_CACHE " + "x" * 256 + ' ["@a"]', "this is no name of a cache"),
            ('INVALIDATE_CACHE get_user ["\\u0000"]', "NUL"),
        ):
            with self.subTest(line[:40]):
                client = self.client("REPLICATE caches NOW")
                client.send(line)
                (error,) = client.received()
                self.assertRegex(error, f"^ERROR .*{reason}")
                self.assertTrue(client.transport.disconnecting)
                client.lost()
        self.assertEqual(self.site.master.closed, {"invalidation_refused": 3})
        self.assertEqual((self.facts(), self.site.events), ([], []))
        self.asking.send('INVALIDATE_CACHE get_user ["@a"]')  # which is not held up by those
        self.assertEqual(self.keys(), [[["@a"]]])

    def test_retries_until_the_database_comes_back(self) -> None:
        self.site.store.away = True
        for user in ("@a", "@b", "@a"):
            self.asking.send(f'INVALIDATE_CACHE get_user ["{user}"]')
        self.site.clock.pump([0.1] * 20)
        self.assertEqual((self.site.relay.waiting, len(self.site.cached("get_user"))), (2, 2))
        self.assertFalse(self.asking.transport.disconnecting)
        self.site.store.away = False
        self.site.clock.pump([1.0] * 10)
        self.assertEqual((self.site.relay.waiting, self.site.cached("get_user")), (0, []))
        self.assertEqual(sorted(key for keys in self.keys() for key in keys), [["@a"], ["@b"]])
        self.assertIn("invalidations wait: ", self.site.warnings[0])

    def test_writes_an_invalidation_again_that_is_repeated_during_the_write(self) -> None:
        """The row being written may be applied before the change that the second one reports."""
        self.site.store.stop = ["append committed"]
        for _ in range(3):
            self.asking.send('INVALIDATE_CACHE get_user ["@a"]')
        self.assertEqual(self.site.relay.waiting, 1)
        self.site.store.stopped.pop().callback(None)
        self.turn()
        self.assertEqual(self.keys(), [[["@a"]], [["@a"]]])

    def test_writes_many_invalidations_as_one_fact(self) -> None:
        self.site.store.away = True
        for n in range(ROWS_OF_A_FACT + 5):
            self.site.relay.take(InvalidateCache("get_user", (n,)))
        self.site.store.away = False
        self.site.clock.pump([1.0] * 10)
        self.assertEqual([len(keys) for keys in self.keys()], [ROWS_OF_A_FACT, 5])

    def test_stopping_writes_what_waits_or_logs_it(self) -> None:
        """Waiting rows are written at once if possible, and otherwise logged."""
        for away, left in ((False, 0), (True, 2)):
            self.site.store.away = True
            for user in ("@a", "@b"):
                self.asking.send(f'INVALIDATE_CACHE get_user ["{user}"]')
            self.site.store.away = away
            done(self.site.relay.stop())
            self.assertEqual(self.site.relay.waiting, left)
        self.site.store.away = False
        self.assertEqual(self.keys(), [[["@a"], ["@b"]]])
        self.assertIn("2 invalidations were not written: ", self.site.warnings[-1])

    def test_refuses_invalidations_beyond_the_limit(self) -> None:
        self.site.store.away = True
        # Whatever is being written at that moment comes back.
        while self.site.relay.waiting < MAX_WAITING:
            self.site.relay.take(InvalidateCache("get_user", (self.site.relay.waiting,)))
        with self.assertRaisesRegex(TooManyInvalidations, "10000 invalidations already wait"):
            self.site.relay.take(InvalidateCache("get_user", ("one more",)))
        self.site.relay.take(InvalidateCache("get_user", (5,)))  # which waits already
        self.asking.send('INVALIDATE_CACHE get_user ["one more"]')
        (error,) = self.asking.received()
        self.assertIn("ERROR 10000 invalidations already wait for the database", error)

    def test_ignores_invalidations_on_a_master_that_does_not_write_the_stream(self) -> None:
        site = self.site
        events: list[Command] = []
        master = Master(
            site.scheduler,
            CATALOGUE,
            site.announcer.states,
            site.publisher,
            site.store,
            lambda _, command: events.append(command),
            site.log,
        )
        self.factory = MasterFactory(site.scheduler, master, "example.org")
        self.client("REPLICATE caches NOW").send('INVALIDATE_CACHE get_user ["@a"]')
        self.assertEqual(self.facts(), [])
        self.assertEqual(events, [InvalidateCache("get_user", ("@a",))])
