"""``python -m benchmarks.lake_reader_process LAKE STREAM SEED``: reads a table of a lake, over and over, until it is ended.

It knows of synrepl's lakes what any reader of Delta tables does, and uses deltalake alone. It opens the newest version
of a table, or a somewhat older one, waits a little, and then reads it: others may have replaced its files by then. What is at or below
the position of a version has to stay as it is in all later ones, except for cells that are erased, and no row may be
there twice. A read may fail because an erasure has deleted files at once, as the documents say, and for no other reason:
an erasure counts on the table's epoch, deletes files of earlier epochs alone, and their names have theirs.

It prints a line for each read: ``read``, ``erased``, or ``problem`` with what is wrong.
"""

from __future__ import annotations

import random
import re
import sys
from time import sleep
from typing import Any

import numpy as np
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

#: How far back an older version is, at most.
_VERSIONS_BACK = 40

#: How long a version is kept open before it is read, at most, in seconds.
_HELD_S = 3.0

#: The name of a file, with its epoch if that is not 0.
_FILE = re.compile(r"part-(?:(\d+)-)?[0-9a-f]{32}\.parquet")


class Problem(Exception):
    """What a reader found that must not be."""


class Reader:
    """Reads one table, and remembers how many rows there were up to a position."""

    def __init__(self, url: str, seed: int) -> None:
        self._url = url
        self._dice = random.Random(seed)
        self._known = 0, 0

    def read(self) -> str:
        """Read once; the line to print."""
        table = DeltaTable(self._url)
        newest = table.version()
        if self._dice.random() < 0.3:
            back = self._dice.randint(1, _VERSIONS_BACK)
            table = DeltaTable(self._url, version=max(0, newest - back))
        try:
            sleep(self._dice.uniform(0.0, _HELD_S))
            rows = table.to_pyarrow_table(columns=["stream_id", "row_no", "state_key"])
        except (DeltaError, OSError) as error:
            if is_erased(str(error), _erasures(DeltaTable(self._url))):
                return "erased"
            return f"problem version {table.version()} of {newest} cannot be read: {error}"
        try:
            return f"read {self._checked(table, rows, is_newest=table.version() == newest)}"
        except Problem as error:
            return f"problem version {table.version()} of {newest}: {error}"

    def _checked(self, table: DeltaTable, rows: Any, *, is_newest: bool) -> int:
        position = table.transaction_version("synrepl/linear") or 0
        ids = rows["stream_id"].to_numpy()
        if len(ids) and ids.max() > position:
            raise Problem(f"row {ids.max()} is above the position, {position}")
        places = np.sort(ids * 1000 + rows["row_no"].to_numpy())
        if doubled := int((np.diff(places) == 0).sum()):
            raise Problem(f"{doubled} rows are there twice")
        known_position, known_rows = self._known
        if is_newest:
            if position < known_position:
                raise Problem(f"the position went back from {known_position} to {position}")
            found = int((ids <= known_position).sum())
            if found != known_rows:
                raise Problem(f"{known_rows} rows up to {known_position} have become {found}")
            self._known = position, len(ids)
        elif position <= known_position and len(ids) > known_rows:
            raise Problem(f"{len(ids)} rows up to {position}, and later only {known_rows}")
        return len(ids)


def is_erased(error: str, epoch: int) -> bool:
    """True if an error names a file of an earlier epoch, which an erasure may have deleted."""
    lost = _FILE.search(error)
    return lost is not None and int(lost[1] or 0) < epoch


def _erasures(table: DeltaTable) -> int:
    return table.transaction_version("synrepl/erasures") or 0


def main(lake: str, stream: str, seed: str) -> None:
    """Read until the process is ended."""
    reader = Reader(f"{lake}/streams/{stream}", int(seed))
    while True:
        print(reader.read().replace("\n", " "), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
