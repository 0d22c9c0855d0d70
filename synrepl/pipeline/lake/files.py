"""Data files: what a task says of one that it has written, and what a table knows of each."""

from __future__ import annotations

import msgspec


class DataFile(msgspec.Struct, frozen=True):
    """One Parquet file of a table.

    :ivar name: in the table's folder
    :ivar size: in bytes
    :ivar low: the least stream ID in it, and ``high`` the greatest
    """

    name: str
    size: int
    rows: int
    low: int
    high: int

    @property
    def stats(self) -> str:
        """What the table's log says of it.

        Of no column but the ID: least and greatest values of others would keep in the log
        what is to be erased.
        """
        told = {
            "numRecords": self.rows,
            "minValues": {"stream_id": self.low},
            "maxValues": {"stream_id": self.high},
            "nullCount": {"stream_id": 0},
        }
        return msgspec.json.encode(told).decode()
