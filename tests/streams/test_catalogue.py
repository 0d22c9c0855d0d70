"""The catalogue, and the properties of Synapse's streams."""

from __future__ import annotations

from unittest import TestCase

from synrepl.streams.catalogue import Catalogue, DuplicateStream, UnknownStream
from synrepl.streams.declared import declare
from synrepl.streams.definition import Generation, numbered_together
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.streams.synapse.backfill import BACKFILL
from synrepl.streams.synapse.events import EVENTS
from synrepl.streams.synapse.typing import TYPING
from tests.streams.recordings import announced


class CatalogueTests(TestCase):
    catalogue = Catalogue(SYNAPSE_STREAMS)

    def test_finds_streams_by_name(self) -> None:
        self.assertIs(self.catalogue["events"], EVENTS)
        self.assertIn("typing", self.catalogue)
        self.assertNotIn("nosuch", self.catalogue)
        self.assertEqual(len(self.catalogue), len(SYNAPSE_STREAMS))

    def test_suggests_names_for_unknown_ones(self) -> None:
        with self.assertRaisesRegex(UnknownStream, "'pushes'; did you mean pushers"):
            self.catalogue["pushes"]
        with self.assertRaisesRegex(UnknownStream, "no stream 'zzzz'$"):
            self.catalogue["zzzz"]
        with self.assertRaises(UnknownStream) as caught:
            self.catalogue["x" * 100_000]
        self.assertLess(len(str(caught.exception)), 200)

    def test_refuses_two_streams_of_one_name(self) -> None:
        with self.assertRaisesRegex(DuplicateStream, "'events' is declared twice"):
            Catalogue([EVENTS, TYPING, EVENTS])
        with self.assertRaisesRegex(DuplicateStream, "'events'"):
            Catalogue([*self.catalogue, declare("events", {"a": "text"})])

    def test_declared_streams_come_last(self) -> None:
        more = Catalogue([*self.catalogue, declare("jobs", {"id": "bigint"})])
        self.assertEqual([stream.name for stream in more][-1], "jobs")
        self.assertIn(more["jobs"], more.known_to(Generation.LEGACY))


class SynapseTests(TestCase):
    def names(self, generation: Generation) -> list[str]:
        return [stream.name for stream in Catalogue(SYNAPSE_STREAMS).known_to(generation)]

    def test_real_servers_announce_the_same_streams_in_the_same_order(self) -> None:
        self.assertEqual(announced("1.0.0/live.jsonl.gz"), self.names(Generation.OLDEST))
        self.assertEqual(announced("1.11.1/live.jsonl.gz"), self.names(Generation.LEGACY))
        self.assertEqual(announced("1.43.0/live.jsonl.gz"), self.names(Generation.MODERN))

    def test_what_todays_servers_announce(self) -> None:
        self.assertEqual(
            set(announced("1.163.2/redis.jsonl.gz")), set(self.names(Generation.CURRENT))
        )

    def test_what_transitional_servers_announce(self) -> None:
        # The recorded one sends its federation traffic itself.
        names = [name for name in self.names(Generation.TRANSITIONAL) if name != "federation"]
        self.assertEqual(announced("1.20.1/live.jsonl.gz"), names)

    def test_streams_that_are_numbered_together(self) -> None:
        together = numbered_together(SYNAPSE_STREAMS)
        self.assertEqual(
            {
                frozenset(("account_data", "tag_account_data")),
                frozenset(("device_lists", "user_signature")),
            },
            set(together.values()),
        )
        self.assertEqual(together["account_data"], {"account_data", "tag_account_data"})

    def test_streams_have_the_documented_properties(self) -> None:
        def named(flag: str) -> set[str]:
            return {stream.name for stream in SYNAPSE_STREAMS if getattr(stream, flag)}

        self.assertEqual(named("in_memory"), {"typing", "federation", "presence_federation"})
        self.assertEqual(named("unordered"), {"backfill", "caches", "federation", "presence"})
        self.assertEqual(named("counts_down"), {"backfill"})
        self.assertEqual(named("tagged"), {"events"})
        self.assertEqual(BACKFILL.stream_id(5), -5)
