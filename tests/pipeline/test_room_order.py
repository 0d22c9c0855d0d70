"""Large files have their rows sorted by room."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from synrepl.pipeline.lake import room_order
from synrepl.pipeline.lake.data_files import DataFile, FileWriter, is_by_room, read_batches

SCHEMA = pa.schema(
    {
        "stream_id": pa.int64(),
        "row_no": pa.int64(),
        "room_id": pa.string(),
        "event_id": pa.string(),
        "origin_server_ts": pa.int64(),
    }
)
DAY_MS = 86_400_000
ROOMS = [f"!{name}:x" for name in "qwertyuiop"]

#: Rows in a window, so that a few thousand make several.
WINDOW = 800


class FilesByRoom(SynchronousTestCase):
    timeout = 60

    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).absolute()
        self.folder.mkdir()
        self.patch(room_order, "WINDOW_ROWS", WINDOW)
        self.chance = random.Random(5)

    def row(self, number: int, **cells: Any) -> dict[str, Any]:
        """A row, a minute after the one before it."""
        return {
            "stream_id": number,
            "row_no": 0,
            "room_id": self.chance.choice(ROOMS),
            "event_id": f"$e{number}",
            "origin_server_ts": 100 * DAY_MS + number * 60_000,
            **cells,
        }

    def written(self, rows: list[dict[str, Any]], *, by_room: bool = True) -> Path:
        """Write rows to a file, a few at a time."""
        writer = FileWriter(self.folder, SCHEMA, by_room=by_room)
        for at in range(0, len(rows), 100):
            writer.write(pa.RecordBatch.from_pylist(rows[at : at + 100], schema=SCHEMA))
        file = writer.close()
        assert file is not None
        self.file: DataFile = file
        return self.folder / file.name

    def groups(self, path: Path, column: str) -> list[tuple[Any, Any]]:
        """The extremes of a column in each row group, by the footer."""
        metadata = pq.read_metadata(path)
        at = SCHEMA.get_field_index(column)
        found = [
            metadata.row_group(n).column(at).statistics for n in range(metadata.num_row_groups)
        ]
        return [(each.min, each.max) for each in found]

    def test_a_room_is_in_one_place_of_each_window_in_the_order_of_tokens(self) -> None:
        rows = [self.row(number) for number in range(2 * WINDOW)]
        read = pq.read_table(self.written(rows)).to_pylist()
        for at in (0, WINDOW):
            window = rows[at : at + WINDOW]
            self.assertEqual(
                read[at : at + WINDOW],
                sorted(window, key=lambda row: (row["room_id"], row["stream_id"])),
            )
        self.assertEqual((self.file.low, self.file.high), (0, 2 * WINDOW - 1))

    def test_readers_of_a_room_skip_most_row_groups(self) -> None:
        path = self.written([self.row(number) for number in range(3 * WINDOW)])
        extremes = self.groups(path, "room_id")
        self.assertEqual(len(extremes), 3 * room_order.GROUPS)
        for room in ROOMS:
            may_have = sum(low <= room <= high for low, high in extremes)
            self.assertLessEqual(may_have, 3 * 2)

    def test_rows_far_from_the_others_in_time_are_in_row_groups_of_their_own(self) -> None:
        rows = [self.row(number) for number in range(WINDOW)]
        rows[7]["origin_server_ts"] = 0
        rows[300]["origin_server_ts"] = 2**62
        rows[500]["origin_server_ts"] = None
        path = self.written(rows)
        *others, far = self.groups(path, "origin_server_ts")
        self.assertEqual(far, (0, 2**62))
        for low, high in others:
            self.assertLessEqual(100 * DAY_MS, low)
            self.assertLess(high, 101 * DAY_MS)
        self.assertEqual(pq.read_metadata(path).row_group(len(others)).num_rows, 2)

    def test_rows_without_a_room_come_last(self) -> None:
        rows = [self.row(number, room_id=None if number % 2 else "!a:x") for number in range(10)]
        read = pq.read_table(self.written(rows)).column("stream_id").to_pylist()
        self.assertEqual(read, [0, 2, 4, 6, 8, 1, 3, 5, 7, 9])

    def test_a_window_without_any_room_or_time_is_written(self) -> None:
        rows = [self.row(number, room_id=None, origin_server_ts=None) for number in range(10)]
        self.assertEqual(pq.read_table(self.written(rows)).to_pylist(), rows)

    def test_windows_of_wide_rows_have_fewer_rows(self) -> None:
        self.patch(room_order, "WINDOW_BYTES", 64_000)
        rows = [self.row(number, event_id="$" * 1000) for number in range(200)]
        metadata = pq.read_metadata(self.written(rows))
        sizes = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
        self.assertEqual(sum(sizes), 200)
        self.assertLessEqual(max(sizes), 100 / room_order.GROUPS + 1)

    def test_files_say_whether_they_are_sorted(self) -> None:
        rows = [self.row(number) for number in range(10)]
        self.assertTrue(is_by_room(self.written(rows)))
        self.assertFalse(is_by_room(self.written(rows, by_room=False)))

    def test_rows_without_rooms_stay_in_the_order_of_tokens(self) -> None:
        schema = pa.schema({"stream_id": pa.int64(), "row_no": pa.int64()})
        writer = FileWriter(self.folder, schema, by_room=True)
        rows = [{"stream_id": number, "row_no": 0} for number in range(10)]
        writer.write(pa.RecordBatch.from_pylist(rows, schema=schema))
        file = writer.close()
        assert file is not None
        self.assertFalse(is_by_room(self.folder / file.name))
        self.assertEqual(pq.read_table(self.folder / file.name).to_pylist(), rows)

    def test_columns_of_the_same_names_may_have_other_types(self) -> None:
        other = {"room_id": pa.int64(), "event_id": pa.bool_(), "origin_server_ts": pa.string()}
        row = {"stream_id": 1, "row_no": 0, "room_id": "!r", "event_id": True}
        cells = {**row, "origin_server_ts": "now"}
        for names in (["event_id", "origin_server_ts"], list(other)):
            fields = [(f.name, other[f.name] if f.name in names else f.type) for f in SCHEMA]
            rows = [{**cells, "room_id": 5}] if "room_id" in names else [cells]
            schema = pa.schema(fields)
            writer = FileWriter(self.folder, schema, by_room=True)
            writer.write(pa.RecordBatch.from_pylist(rows, schema=schema))
            file = writer.close()
            assert file is not None
            self.assertEqual(pq.read_table(self.folder / file.name).to_pylist(), rows)

    def test_only_event_ids_have_a_bloom_filter(self) -> None:
        path = self.written([self.row(number) for number in range(WINDOW)])
        group = pq.read_metadata(path).row_group(0)
        columns = [group.column(n) for n in range(group.num_columns)]
        sizes = {each.path_in_schema: each.bloom_filter_length for each in columns}
        self.assertEqual([name for name, size in sizes.items() if size], ["event_id"])
        self.assertGreater(sizes["event_id"], WINDOW // room_order.GROUPS)

    @given(
        st.lists(
            st.tuples(
                st.sampled_from([*ROOMS[:3], None]),
                st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(0, 1000)),
            ),
            min_size=1,
            max_size=40,
        )
    )
    def test_all_rows_are_written_once(self, cells: list[tuple[str | None, int | None]]) -> None:
        rows = [
            self.row(number, room_id=room, origin_server_ts=time)
            for number, (room, time) in enumerate(cells)
        ]
        path = self.written(rows)
        read = [row for batch in read_batches(path, SCHEMA) for row in batch.to_pylist()]
        self.assertEqual(sorted(read, key=lambda row: row["stream_id"]), rows)
        path.unlink()
