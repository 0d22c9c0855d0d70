"""The data about a real Synapse's tables fits the catalogue."""

from __future__ import annotations

from unittest import TestCase

from synrepl.storage.foreign.tables import TABLES
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Generation
from synrepl.streams.synapse import SYNAPSE_STREAMS


class TableMappings(TestCase):
    def test_covers_every_stream_that_is_not_in_memory(self) -> None:
        late = {
            "un_partial_stated_room",
            "un_partial_stated_event",
        }  # not in the releases before their generation
        for (mark, streams), generation, more in zip(
            TABLES,
            (Generation.LEGACY, Generation.LEGACY, *[Generation.MODERN] * 2, Generation.CURRENT),
            (set(), set(), set(), late, set()),
            strict=True,
        ):
            with self.subTest(mark):
                known = Catalogue(SYNAPSE_STREAMS).known_to(generation)
                self.assertEqual(set(streams), {s.name for s in known if not s.in_memory} | more)

    def test_covers_every_field_of_every_kind(self) -> None:
        catalogue = Catalogue(SYNAPSE_STREAMS)
        for mark, streams in TABLES:
            for name, stream in streams.items():
                kinds = catalogue[name].kinds
                for feed in stream.feeds:
                    with self.subTest(mark, stream=name, table=feed.table):
                        self.assertEqual(set(feed.cells), set(kinds[feed.kind].__struct_fields__))

    def test_every_column_names_its_table(self) -> None:
        for _, streams in TABLES:
            feed = streams["account_data"].feeds[-1]
            self.assertIn((feed.table, "stream_id"), set(feed.columns()))
        tags = TABLES[-2][1]["tag_account_data"].feeds[0]
        self.assertIn(("room_tags", "content"), set(tags.columns()))
