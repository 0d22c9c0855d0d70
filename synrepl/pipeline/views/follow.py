"""A Delta table with the newest row of each key, which follows a stream.

rows = spark.readStream.format("synrepl").option("stream", "memberships").load()
follow = upsert_into("/lake/members", ["room_id", "user_id"])
rows.writeStream.foreachBatch(follow).option("checkpointLocation", "…").start()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame

from synrepl.core.errors import StorageError
from synrepl.pipeline.source.database.stream_schema import HEAD
from synrepl.pipeline.views.by_key import KeyMissing, latest_by_key, require_columns

_ID, _ROW = HEAD[0].name, HEAD[1].name


class ViewFailed(StorageError):
    """the table {path} of a view cannot be {what}: {reason}"""


def upsert_into(path: str | Path, keys: Sequence[str]) -> UpsertByKey:
    """A function for ``foreachBatch`` that keeps a Delta table at the newest row of each key.

    The table is created by the first batch with rows. Rows replace older ones only, by their
    place in the stream, so a batch that is run again, or a query that starts again with a new
    checkpoint, changes nothing. Cells that are erased from a lake are not erased from such a table:
    remove it, and let it follow again.

    :param path: the folder of the table, or its URL; a relative folder is made absolute here
    :param keys: the columns of the key, such as ``["room_id", "user_id"]``
    :raises KeyMissing: there are none
    """
    if not keys:
        raise KeyMissing
    # A server of Spark Connect calls the function in a temporary folder of its own.
    place = path if isinstance(path, str) and "://" in path else Path(path).absolute()
    return UpsertByKey(str(place), tuple(keys))


@dataclass(frozen=True, slots=True)
class UpsertByKey:
    """Merges the rows of micro-batches into a table, see :func:`upsert_into`."""

    path: str
    keys: tuple[str, ...]

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Merge a batch: one row of each of its keys goes through the driver.

        :raises NoSuchColumn: :raises ViewFailed:
        """
        require_columns(rows, self.keys, [_ID, _ROW])
        newest: pa.Table = latest_by_key(rows, self.keys).toArrow()
        if newest.num_rows:
            self._merge(newest)

    def _merge(self, newest: pa.Table) -> None:
        what = "opened"
        try:
            if not DeltaTable.is_deltatable(self.path):
                what = "created"
                DeltaTable.create(self.path, newest.schema, mode="ignore")
            table = DeltaTable(self.path)
            what = "written"
            # In parentheses, as AND binds closer than this operator.
            same = " AND ".join(
                f"(new.{_quoted(key)} IS NOT DISTINCT FROM old.{_quoted(key)})" for key in self.keys
            )
            newer = (
                f"abs(new.{_ID}) > abs(old.{_ID})"
                f" OR (new.{_ID} = old.{_ID} AND new.{_ROW} > old.{_ROW})"
            )
            merging = table.merge(newest, same, "new", "old", merge_schema=True)
            merging.when_matched_update_all(newer).when_not_matched_insert_all().execute()
        except (DeltaError, OSError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ViewFailed(path=self.path, what=what, reason=reason) from None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
