"""Data files of a lake's tables: writing, reading and verifying them.

A task writes into a folder of the machine it runs on, and reads there what it has written: the footer, with the number of
rows. Unless the driver reaches the same folder, a commit would name files that do not exist, and a position would move past
rows that are lost. So the driver asks for the size of each file, without opening it.
"""

from __future__ import annotations

import re
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from synrepl.core.errors import StorageError
from synrepl.pipeline.lake import room_order
from synrepl.pipeline.lake.column_ranges import ColumnRange, in_log, skipping_columns
from synrepl.pipeline.lake.computed_columns import SOURCES, TIMESTAMP, as_in_file
from synrepl.pipeline.lake.in_parallel import in_parallel
from synrepl.pipeline.lake.storage import (
    LakePath,
    ObjectUnreadable,
    file_size,
    input_size,
    make_durable,
    open_input,
    open_output,
    plain_error,
)


class DataFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One Parquet file of a table.

    :ivar name: the file's name in the table's folder
    :ivar size: its size in bytes
    :ivar rows: its number of rows
    :ivar low: the least stream ID in it
    :ivar high: the greatest stream ID in it
    :ivar ranges: of other columns of numbers and times, as far as they are known
    """

    name: str
    size: int
    rows: int
    low: int
    high: int
    ranges: tuple[ColumnRange, ...] = ()

    @property
    def stats(self) -> str:
        """The file's statistics in the table's log, as JSON, by which readers skip files.

        Only of numbers and times, which are never erased: extremes of other columns would keep values in the
        log that are to be erased. Columns without a value have to be there, too: deltalake takes a file
        without their number of NULLs for one that has no rows at all that are asked for.
        """
        of_ids = ColumnRange("stream_id", self.low, self.high, 0)
        known = (of_ids, *self.ranges)
        statistics = {
            "numRecords": self.rows,
            "minValues": {each.column: in_log(each.low) for each in known if each.low is not None},
            "maxValues": {
                each.column: in_log(each.high) for each in known if each.high is not None
            },
            "nullCount": {each.column: each.nulls for each in known},
        }
        return msgspec.json.encode(statistics).decode()

    def may_have(self, column: str, numbers: Sequence[int]) -> bool:
        """Whether a column may have one of these numbers; True if its extremes are not known.

        :param numbers: in ascending order
        """
        known = [each for each in self.ranges if each.column == column]
        return not known or any(
            isinstance(each.low, int)
            and isinstance(each.high, int)
            and bisect_left(numbers, each.low) < bisect_right(numbers, each.high)
            for each in known
        )


class FileNotAsWritten(StorageError):
    """a task of Spark wrote {name} into {path}, and {reader} finds {found} there; nothing of it was committed. The lake's folder has to be one shared folder, reached under this path by the driver and by all executors: mount it so, and run this again"""


class FolderNotShared(StorageError):
    """a file in {path} cannot be {what} by a task of Spark: {reason}. The lake's folder has to be one shared folder, reached under this path by the driver and by all executors, which have to be allowed to write there"""


class DataFileDamaged(StorageError):
    """file {path} is damaged: {reason}. It was left as it is; 'synrepl lake repair' makes it again"""


#: What reading a damaged file may raise; the last of names in its footer.
_UNREADABLE = (OSError, pa.ArrowException, UnicodeDecodeError)


def verify_files(folder: LakePath, files: Iterable[DataFile]) -> None:
    """Check in the driver that the folder it reaches is the one in which tasks have confirmed files.

    Their names are unique, so a file of the same name and size is the one that was written.

    :raises FileNotAsWritten: a file is missing, or has another size
    """
    for file in files:
        try:
            found = _unlike_size(file_size(folder / file.name), file)
        except OSError as error:
            found = _unreadable(error)
        if found:
            raise FileNotAsWritten(name=file.name, path=folder, reader="the driver", found=found)


def confirm_files(written: Sequence[tuple[LakePath, DataFile]]) -> None:
    """Make files durable in the task that wrote them, and check there that they are as they were written.

    The size and the number of rows in the footer are compared; the rows are not read. Several files are done at the same
    time, since a file system makes many durable for little more than one.

    :param written: folders and files
    :raises FileNotAsWritten: a file is missing, cannot be read, or differs
    :raises FolderNotShared: a file cannot be made durable
    """
    if written:
        in_parallel(_confirm, written, written[0][0])


def _confirm(written: tuple[LakePath, DataFile]) -> None:
    folder, file = written
    path = folder / file.name
    with task_file_errors(path, "written"):
        make_durable(path)
    with task_file_errors(path, "read"):
        found = unlike(path, file)
    if found:
        raise FileNotAsWritten(name=file.name, path=folder, reader="the task", found=found)


def damage_of(path: LakePath, file: DataFile) -> str:
    """How a file differs from what was written, after reading all of it; "" if it does not.

    :raises ObjectUnreadable: the object store does not give it, so it may be as it was written
    """
    if found := unlike(path, file):
        return found
    try:
        with open_input(path) as opened:
            rows = sum(batch.num_rows for batch in pq.ParquetFile(opened).iter_batches(BATCH_ROWS))
    except ObjectUnreadable:
        raise
    except _UNREADABLE as error:
        return f"a file whose rows cannot be read ({plain_error(error)[:200]})"
    return "" if rows == file.rows else f"{rows:,} of its {file.rows:,} rows"


@contextmanager
def task_file_errors(path: LakePath, what: str) -> Iterator[None]:
    """Turn errors of the file system in a task into :class:`FolderNotShared`.

    :param what: completes the message "a file cannot be …"
    :raises FolderNotShared:
    """
    try:
        yield
    except OSError as error:
        reason = plain_error(error)[:300]
        raise FolderNotShared(path=path.parent, what=what, reason=reason) from None


@contextmanager
def _reading_errors(path: LakePath) -> Iterator[None]:
    """Turn errors of reading a file in a task into ours.

    :raises DataFileDamaged: it is there, and its contents cannot be read
    :raises FolderNotShared: another error of the file system
    """
    with task_file_errors(path, "read"):
        try:
            yield
        except pa.ArrowMemoryError:
            raise
        except (pa.ArrowException, UnicodeDecodeError) as error:  # the latter of names in a footer
            raise DataFileDamaged(path=path, reason=plain_error(error)[:300]) from None
        except OSError as error:
            # Arrow's, of pages that cannot be unpacked. Those of storage have a number, or a class of their own.
            if error.errno is None and type(error) is OSError:
                raise DataFileDamaged(path=path, reason=plain_error(error)[:300]) from None
            raise


def unlike(path: LakePath, file: DataFile) -> str:
    """How a file's size and number of rows differ from what was written; "" if they do not.

    :raises ObjectUnreadable: the object store does not give it, so it may be as it was written
    """
    try:
        with open_input(path) as opened:
            if found := _unlike_size(input_size(opened), file):
                return found
            rows = pq.read_metadata(opened).num_rows
    except ObjectUnreadable:
        raise
    except _UNREADABLE as error:
        return _unreadable(error)
    return "" if rows == file.rows else f"{rows:,} of its {file.rows:,} rows"


def _unlike_size(size: int, file: DataFile) -> str:
    return "" if size == file.size else f"{size:,} of its {file.size:,} bytes"


def _unreadable(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    return f"a file that it cannot read ({plain_error(error)[:200]})"


#: Default number of rows in a batch.
BATCH_ROWS = 32_768


def read_batches(
    path: LakePath, schema: pa.Schema, *, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Read the rows of a file in a task, in these columns; columns that the file lacks are null.

    :raises FolderNotShared: the file does not exist on the task's machine
    :raises DataFileDamaged: its contents cannot be read
    """
    with ExitStack() as stack:
        with _reading_errors(path):
            file = pq.ParquetFile(stack.enter_context(open_input(path)))
            there = set(file.schema_arrow.names)
        wanted = [name for name in schema.names if name in there]
        batches = file.iter_batches(batch_rows, columns=wanted)
        while True:
            with _reading_errors(path):
                batch = next(batches, None)
            if batch is None:
                return
            yield _as(batch, schema)


def _as(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if batch.schema.equals(schema):
        return batch
    columns: list[Any] = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        if at < 0:
            columns.append(pa.nulls(batch.num_rows, field.type))
        else:
            columns.append(batch.column(at).cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


_EPOCH = re.compile(r"part-(\d+)-[0-9a-f]{32}\.parquet")


def file_epoch(name: str) -> int:
    """The epoch in the name of a file, see :class:`FileWriter`."""
    found = _EPOCH.fullmatch(name)
    return 0 if found is None else int(found[1])


#: Number of rows in a row group, which is what a reader holds of each column.
GROUP_ROWS = 131_072

#: Columns whose values hardly repeat, so a dictionary of them would be useless: they are encoded as differences.
_DISTINCT = frozenset(("stream_id", *SOURCES, *SOURCES.values()))

#: Maximum size of the rows held until they are written as a group, in bytes.
GROUP_BYTES = 32 << 20


class FileWriter:
    """Writes rows to a new file of a table, in a task. A commit adds the file to the table.

    Memory is bounded by one group of rows, plain and encoded, or by a window of them and its sorted copy.

    :param folder: the table's folder
    :param schema: the Arrow schema of the file, see :func:`.file_schema`
    :param epoch: the :attr:`.StreamTable.epoch` for which the rows were masked; it is in the file's name
    :param by_room: sort the rows by room, see :mod:`.room_order`, if they have one
    """

    def __init__(
        self, folder: LakePath, schema: pa.Schema, epoch: int = 0, *, by_room: bool = False
    ) -> None:
        number = f"{epoch}-" if epoch else ""
        self._path: LakePath = folder / f"part-{number}{uuid.uuid4().hex}.parquet"
        self._schema = schema
        self._by_room = by_room and room_order.has_rooms(schema)
        self._most_rows = GROUP_ROWS if not self._by_room else room_order.WINDOW_ROWS
        self._most_bytes = GROUP_BYTES if not self._by_room else room_order.WINDOW_BYTES
        self._writer: pq.ParquetWriter | None = None
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0
        self._rows = 0
        self._low, self._high = 2**63 - 1, -(2**63)
        self._ranges = {name: ColumnRange(name, None, None, 0) for name in skipping_columns(schema)}

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows, in the order of their tokens.

        :param batch: with the file's columns; those that are computed are computed here
        :raises FolderNotShared: they cannot be written
        """
        if not batch.num_rows:
            return
        batch = as_in_file(batch, self._schema)
        ids = pc.min_max(batch.column("stream_id")).as_py()
        self._low, self._high = min(self._low, ids["min"]), max(self._high, ids["max"])
        for name, known in self._ranges.items():
            column = batch.column(name)
            ends = pc.min_max(column).as_py()
            self._ranges[name] = known.merged(ends["min"], ends["max"], column.null_count)
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        if self._held_rows >= self._most_rows or self._held_bytes >= self._most_bytes:
            self._flush()

    def close(self) -> DataFile | None:
        """Complete the file, confirm it (:func:`confirm_files`) and describe it; None if there were no rows, and so no file.

        :raises FolderNotShared: it cannot be written
        :raises FileNotAsWritten: it is not there as it was written
        """
        file = self.complete()
        if file is not None:
            confirm_files([(self._path.parent, file)])
        return file

    def complete(self) -> DataFile | None:
        """Write the rest of the file and describe it; None if there were no rows, and so no file.

        It has to be confirmed (:func:`confirm_files`) before a commit makes it part of the table.

        :raises FolderNotShared: it cannot be written
        """
        self._flush()
        if self._writer is None:
            return None
        with task_file_errors(self._path, "written"):
            self._writer.close()
            size = self._sink.tell()
            self._sink.close()
        ranges = tuple(self._ranges.values())
        return DataFile(self._path.name, size, self._rows, self._low, self._high, ranges)

    def _ordered(self) -> list[str]:
        """Names of the columns to write statistics of: numbers and times, which may grow with the tokens.

        Extremes of text columns help no reader, unless rows are sorted by one, and finding them would take
        a tenth of a landing.
        """
        return [
            field.name
            for field in self._schema
            if (pa.types.is_primitive(field.type) and not pa.types.is_boolean(field.type))
            or (self._by_room and field.name == room_order.ROOM)
        ]

    def _flush(self) -> None:
        if not self._held:
            return
        table = pa.Table.from_batches(self._held, self._schema)
        groups = (
            room_order.in_room_order(table)
            if self._by_room
            else [room_order.RowGroups(table, GROUP_ROWS)]
        )
        with task_file_errors(self._path, "written"):
            for rows, group_rows in groups:
                if self._writer is None:
                    self._writer = self._opened(group_rows)
                self._writer.write_table(rows, row_group_size=group_rows)
        self._rows += self._held_rows
        self._held, self._held_rows, self._held_bytes = [], 0, 0

    def _opened(self, group_rows: int) -> pq.ParquetWriter:
        distinct = [
            field.name
            for field in self._schema
            if field.name in _DISTINCT and field.type in (pa.int64(), TIMESTAMP)
        ]
        more = room_order.writer_options(self._schema, group_rows) if self._by_room else {}
        self._sink = open_output(self._path)
        return pq.ParquetWriter(
            self._sink,
            self._schema,
            compression="zstd",
            write_statistics=self._ordered(),
            use_dictionary=[name for name in self._schema.names if name not in distinct],
            column_encoding=dict.fromkeys(distinct, "DELTA_BINARY_PACKED"),
            **more,
        )


def is_by_room(path: LakePath) -> bool:
    """True if the rows of a file are sorted by room.

    :raises FolderNotShared: the file does not exist on the task's machine
    :raises DataFileDamaged: its footer cannot be read
    """
    with _reading_errors(path), open_input(path) as opened:
        return room_order.is_by_room(pq.read_metadata(opened))
