from __future__ import annotations

from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st

from synrepl.wire.batching import BatchAssembler, BatchTooLarge, RowBatch
from synrepl.wire.commands import Position, Rdata
from tests.wire.strategies import rows


class BatchAssemblerTests(TestCase):
    def setUp(self) -> None:
        self.batches = BatchAssembler()

    def rdata(self, token: int | None, row: bytes, writer: str | None = "w1") -> RowBatch | None:
        return self.batches.add(Rdata("typing", writer, token, row))

    def test_a_single_row_is_a_batch(self) -> None:
        self.assertEqual(self.rdata(5, b"[1]"), (5, [b"[1]"]))

    def test_rows_wait_for_the_token(self) -> None:
        self.assertIsNone(self.rdata(None, b"[1]"))
        self.assertIsNone(self.rdata(None, b"[2]"))
        self.assertEqual(self.batches.pending, 2)
        self.assertEqual(self.rdata(5, b"[3]"), (5, [b"[1]", b"[2]", b"[3]"]))
        self.assertEqual(self.rdata(6, b"[4]"), (6, [b"[4]"]))
        self.assertEqual(self.batches.pending, 0)

    def test_writers_and_streams_are_assembled_separately(self) -> None:
        self.rdata(None, b"[1]", "w1")
        self.rdata(None, b"[2]", "w2")
        self.batches.add(Rdata("caches", "w1", None, b"[0]"))
        self.assertEqual(self.rdata(7, b"[3]", "w2"), (7, [b"[2]", b"[3]"]))
        self.assertEqual(self.rdata(8, b"[4]", "w1"), (8, [b"[1]", b"[4]"]))
        self.assertEqual(self.batches.pending, 1)

    def test_a_position_drops_only_the_unfinished_batch_of_its_writer(self) -> None:
        self.rdata(None, b"[1]", "w1")
        self.rdata(None, b"[2]", "w2")
        self.assertEqual(self.batches.reset(Position("typing", "w1", 9, 12)), 1)
        self.assertEqual(self.batches.reset(Position("typing", "w1", 9, 12)), 0)
        self.assertEqual(self.rdata(13, b"[3]", "w1"), (13, [b"[3]"]))
        self.assertEqual(self.rdata(13, b"[4]", "w2"), (13, [b"[2]", b"[4]"]))

    def test_the_number_of_rows_is_limited_over_all_writers(self) -> None:
        self.batches = BatchAssembler(max_rows=3)
        for number in range(3):
            self.rdata(None, b"[]", f"w{number}")
        with self.assertRaises(BatchTooLarge) as caught:
            self.rdata(None, b"[]", "w9")
        self.assertIn("3 rows", str(caught.exception))
        self.assertIn("'typing'", str(caught.exception))
        self.assertEqual(self.batches.pending, 0)

    def test_the_size_in_bytes_is_limited(self) -> None:
        self.batches = BatchAssembler(max_bytes=10)
        self.rdata(None, b"12345")
        self.rdata(1, b"12345")
        self.rdata(None, b"1234567890")
        with self.assertRaises(BatchTooLarge) as caught:
            self.rdata(None, b"1")
        self.assertIn("10 bytes", str(caught.exception))

    @given(st.lists(st.tuples(st.sampled_from("abc"), st.lists(rows, min_size=1, max_size=4))))
    def test_assembles_what_the_sender_splits(self, facts: list[tuple[str, list[bytes]]]) -> None:
        batches = BatchAssembler()
        got = []
        for token, (writer, fact) in enumerate(facts):
            for row in fact[:-1]:
                self.assertIsNone(batches.add(Rdata("events", writer, None, row)))
            got.append(batches.add(Rdata("events", writer, token, fact[-1])))
        self.assertEqual(got, [(token, fact) for token, (_, fact) in enumerate(facts)])
