"""Writing one data file; in whatever process a task runs."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from synrepl.pipeline.lake.files import DataFile
from synrepl.pipeline.lake.land.shared_folder import in_task

#: Rows that are encoded together: what a reader has to hold of each column at a time.
GROUP_ROWS = 131_072

#: Bytes of rows that are held at most, until there are enough for a group.
GROUP_BYTES = 32 << 20


class FileWriter:
    """Writes rows into a new file of a table. It belongs to the table once it is committed.

    Memory is bounded by one group of rows, encoded and not.

    :param folder: the table's
    :param schema: of the rows; the cells are nullable in the file, whatever it says
    """

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._path = folder / f"part-{uuid.uuid4().hex}.parquet"
        self._schema = schema
        self._writer: pq.ParquetWriter | None = None
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0
        self._rows = 0
        self._low, self._high = 2**63 - 1, -(2**63)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows, in the order of their tokens.

        :raises FolderNotShared: they cannot be written
        """
        if not batch.num_rows:
            return
        ids = pc.min_max(batch.column("stream_id")).as_py()
        self._low, self._high = min(self._low, ids["min"]), max(self._high, ids["max"])
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        if self._held_rows >= GROUP_ROWS or self._held_bytes >= GROUP_BYTES:
            self._flush()

    def close(self) -> DataFile | None:
        """Make the file durable; None when there were no rows, and so is no file.

        :raises FolderNotShared: it cannot be written
        """
        self._flush()
        if self._writer is None:
            return None
        with in_task(self._path, "written"):
            size = self._closed(self._writer)
        return DataFile(self._path.name, size, self._rows, self._low, self._high)

    def _closed(self, writer: pq.ParquetWriter) -> int:
        """End a file, and have it on disk; its size."""
        writer.close()
        # The commit that makes it part of the table must not outlive it.
        with open(self._path, "rb") as file:
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return size

    def _ordered(self) -> list[str]:
        """Columns that grow with the tokens, or may: only there does it help a reader to know the extremes.

        To find those of texts takes a tenth of what landing takes.
        """
        return [
            field.name
            for field in self._schema
            if pa.types.is_primitive(field.type) and not pa.types.is_boolean(field.type)
        ]

    def _flush(self) -> None:
        if not self._held:
            return
        with in_task(self._path, "written"):
            if self._writer is None:
                self._writer = self._opened()
            table = pa.Table.from_batches(self._held, self._schema)
            self._writer.write_table(table, row_group_size=GROUP_ROWS)
        self._rows += self._held_rows
        self._held, self._held_rows, self._held_bytes = [], 0, 0

    def _opened(self) -> pq.ParquetWriter:
        # IDs hardly repeat: a dictionary of them would be made for nothing.
        others = [name for name in self._schema.names if name != "stream_id"]
        return pq.ParquetWriter(
            self._path,
            self._schema,
            compression="zstd",
            write_statistics=self._ordered(),
            use_dictionary=others,
            column_encoding={"stream_id": "DELTA_BINARY_PACKED"},
        )
