"""A lake's folder as tasks and driver reach it: it has to be the same one.

A task writes into a folder of the machine it runs on. Unless the driver reaches the same folder,
a commit would name files that do not exist, and a position would move past rows that are lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from synrepl.core.errors import StorageError
from synrepl.pipeline.lake.files import DataFile


class FileNotAsWritten(StorageError):
    """a task of Spark wrote {name} into {path}, and the driver finds {found} there; nothing of it was committed. The lake's folder has to be one shared folder, reached under this path by the driver and by all executors: mount it so, and run this again"""


class FolderNotShared(StorageError):
    """a file in {path} cannot be {what} by a task of Spark: {reason}. The lake's folder has to be one shared folder, reached under this path by the driver and by all executors, which have to be allowed to write there"""


def verify(folder: Path, files: Iterable[DataFile]) -> None:
    """Make sure that files are in a folder, whole.

    Each is opened, which is what makes a network file system ask its server. Its size and the
    number of rows in its footer are compared; the rows are not read.

    :raises FileNotAsWritten: one is not there, cannot be read, or is another one
    """
    for file in files:
        if found := _unlike(folder / file.name, file):
            raise FileNotAsWritten(name=file.name, path=folder, found=found)


@contextmanager
def in_task(path: Path, what: str) -> Iterator[None]:
    """Name what a task cannot do with a file.

    :param what: for the message: it cannot be ...
    :raises FolderNotShared:
    """
    try:
        yield
    except OSError as error:
        reason = " ".join(str(error).split())[:300]
        raise FolderNotShared(path=path.parent, what=what, reason=reason) from None


def _unlike(path: Path, file: DataFile) -> str:
    """What is there instead of a file; "" when it is as it should be."""
    try:
        with path.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            if size != file.size:
                return f"{size:,} of its {file.size:,} bytes"
            rows = pq.read_metadata(opened).num_rows
    except FileNotFoundError:
        return "no such file"
    except (OSError, pa.ArrowException) as error:
        return f"a file that it cannot read ({' '.join(str(error).split())[:200]})"
    return "" if rows == file.rows else f"{rows:,} of its {file.rows:,} rows"
