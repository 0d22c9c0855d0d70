"""The outbox of a transaction."""

from __future__ import annotations

from unittest import TestCase

from synrepl.storage.outbox import OUTBOX_ROWS, NotNamed, Outbox, OutboxClosed, OutboxFull
from synrepl.streams.rows import BadRow, RowCodec
from synrepl.streams.synapse.backfill import BACKFILL
from tests.storage.samples import NOTES, note


class FillingAnOutbox(TestCase):
    def setUp(self) -> None:
        self.outbox = Outbox({"notes": RowCodec(NOTES)})

    def test_keeps_facts_in_order(self) -> None:
        for rows in ([note("a")], [], [note("b"), note("c")]):
            self.outbox.append(NOTES, rows)
        facts = {"notes": [(note("a"),), (), (note("b"), note("c"))]}
        self.assertEqual(self.outbox.facts, facts)

    def test_a_refused_fact_leaves_nothing(self) -> None:
        with self.assertRaises(NotNamed) as caught:
            self.outbox.append(BACKFILL, [])
        self.assertIn("'backfill'", str(caught.exception))
        self.assertIn("'notes'", str(caught.exception))
        with self.assertRaises(BadRow):
            self.outbox.append(NOTES, [note("good"), note("\0")])
        self.assertEqual(self.outbox.facts, {})

    def test_refuses_too_many_rows(self) -> None:
        self.outbox.append(NOTES, [note("a")] * (OUTBOX_ROWS - 1))
        with self.assertRaises(OutboxFull):
            self.outbox.append(NOTES, [note("a")] * 2)
        self.outbox.append(NOTES, [])  # an empty fact takes a token as well
        for rows in ([], [note("a")]):
            with self.assertRaises(OutboxFull):
                self.outbox.append(NOTES, rows)
        self.assertEqual(len(self.outbox.facts["notes"]), 2)

    def test_refuses_facts_after_it_is_closed(self) -> None:
        self.outbox.append(NOTES, [note("a")])
        self.outbox.close()
        with self.assertRaises(OutboxClosed):
            self.outbox.append(NOTES, [note("b")])
        self.assertEqual(self.outbox.facts, {"notes": [(note("a"),)]})
