"""Statistics of data files, by their footers: for files whose commits have fewer than later ones.

A release may learn to write more statistics, and a column may be added. Readers may take a file without
the statistics that others have for one without the rows that are asked for, as deltalake does. So all get them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from synrepl.pipeline.lake.column_ranges import ColumnRange
from synrepl.pipeline.lake.data_files import DataFile
from synrepl.pipeline.lake.in_parallel import in_parallel
from synrepl.pipeline.lake.storage import LakePath, open_input


def completed(
    folder: LakePath, files: Iterable[DataFile], columns: Sequence[str]
) -> list[DataFile]:
    """The files that lack statistics of a column, with them; those that cannot be read are left out.

    :param columns: columns of numbers and times; all files have statistics of stream IDs
    """
    columns = [name for name in columns if name != "stream_id"]
    lacking = [file for file in files if set(columns) - {each.column for each in file.ranges}]
    found = in_parallel(partial(_completed, folder, columns), lacking, folder)
    return [new for file, new in zip(lacking, found, strict=True) if new != file]


def _completed(folder: LakePath, columns: Sequence[str], file: DataFile) -> DataFile:
    try:
        with open_input(folder / file.name) as opened:
            metadata = pq.read_metadata(opened)
    except (OSError, pa.ArrowException):
        return file  # `lake repair` makes it again, with statistics
    known = {each.column: each for each in file.ranges}
    found = filter(None, (known.get(each) or _range(metadata, each) for each in columns))
    return msgspec.structs.replace(file, ranges=tuple(found))


def _range(metadata: pq.FileMetaData, column: str) -> ColumnRange | None:
    """The extremes of a column; None if the footer does not have them."""
    leaves = [metadata.schema.column(n).path for n in range(metadata.num_columns)]
    if column not in leaves:
        return ColumnRange(column, None, None, metadata.num_rows)
    found = ColumnRange(column, None, None, 0)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        known = group.column(leaves.index(column)).statistics
        if known is None or not known.has_null_count:
            return None
        if known.has_min_max:
            found = found.merged(known.min, known.max, known.null_count)
        elif known.null_count == group.num_rows:
            found = found.merged(None, None, known.null_count)
        else:
            return None
    return found
