"""Sorted digests in files of a lake, so that neither the driver nor a task has to hold them all.

A run is written once. Who looks something up maps it into memory, where the operating system keeps what is in use; of an
object, each process makes a copy on its disk first. Digests are evenly distributed, so the runs that follow each other in their
values are merged piece by piece.
"""

from __future__ import annotations

import hashlib
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from shutil import copyfileobj
from typing import Any

import numpy as np

from synrepl.core.errors import StorageError
from synrepl.pipeline.lake.data_files import task_file_errors
from synrepl.pipeline.lake.storage import (
    LakePath,
    ensure_folder,
    make_durable,
    open_input,
    open_output,
)

DIGEST_BYTES = 16
DIGESTS = np.dtype(f"S{DIGEST_BYTES}")

#: Number of digests that are merged at a time.
AT_ONCE = 65_536

SUFFIX = ".digests"


class DigestRunDamaged(StorageError):
    """file {path}, with the redactions that were found in the lake, is not as it was written; nothing was erased by it: delete it and run this again, so that they are searched for again"""


@dataclass(frozen=True, slots=True)
class DigestRun:
    """A file with different digests, in ascending order; after them, their checksum.

    :ivar path: the file
    :ivar length: the number of digests, one or more
    """

    path: LakePath
    length: int

    def __len__(self) -> int:
        return self.length

    @property
    def size(self) -> int:
        """The size of the file, in bytes."""
        return (self.length + 1) * DIGEST_BYTES

    @property
    def digests(self) -> Any:
        """The digests, mapped into memory.

        :raises FolderNotShared: the file cannot be read here
        :raises DigestRunDamaged: it was changed
        """
        return mapped_digests(self)


def write_run(folder: LakePath, digests: Iterable[Any]) -> DigestRun:
    """Write a run; it is durable.

    :param digests: arrays, which follow each other in ascending order; one of them is not empty
    :raises FolderNotShared: it cannot be written
    """
    path: LakePath = folder / f"{uuid.uuid4().hex}{SUFFIX}"
    checksum, length = checksum_of(), 0
    with task_file_errors(path, "written"):
        ensure_folder(folder)
        with open_output(path) as sink:
            for some in digests:
                data = some.tobytes()
                sink.write(data)
                checksum.update(data)
                length += len(some)
            sink.write(checksum.digest())
        make_durable(path)
    return DigestRun(path, length)


def merged(parts: Sequence[Any]) -> Iterator[Any]:
    """The digests of sorted arrays, each once, in ascending order: as arrays of about :data:`AT_ONCE`, or less."""
    if len(parts) == 1:
        (only,) = parts
        yield from (only[begin : begin + AT_ONCE] for begin in range(0, len(only), AT_ONCE))
        return
    pieces = min(_PREFIXES, -(-sum(map(len, parts)) // AT_ONCE))
    begins = [0] * len(parts)
    for number in range(1, pieces + 1):
        if number == pieces:
            ends = [*map(len, parts)]
        else:
            bound = np.array((number * _PREFIXES // pieces).to_bytes(_PREFIX_BYTES, "big"), DIGESTS)
            ends = [int(np.searchsorted(part, bound)) for part in parts]
        some = [part[begin:end] for part, begin, end in zip(parts, begins, ends, strict=True)]
        yield np.unique(np.concatenate(some))
        begins = ends


#: Digests are divided by their first bytes.
_PREFIX_BYTES = 3
_PREFIXES = 256**_PREFIX_BYTES

#: Number of runs that a process keeps mapped.
_MAPPED = 64


@lru_cache(_MAPPED)
def mapped_digests(run: DigestRun) -> Any:
    """The digests of a run, as :attr:`DigestRun.digests`; each process maps it once."""
    with task_file_errors(run.path, "read"), open_input(run.path) as file:
        if not isinstance(run.path, Path):
            with tempfile.TemporaryFile() as local:
                copyfileobj(file, local)
                local.flush()
                return _checked(run, local)
        return _checked(run, file)


def _checked(run: DigestRun, file: Any) -> Any:
    """The digests of an open file."""
    if file.seek(0, 2) != run.size:
        raise DigestRunDamaged(path=run.path)
    # A memmap finds out for each slice whether it still is one.
    records = np.memmap(file, DIGESTS, "r").view(np.ndarray)
    digests, last = records[:-1], records[-1:]
    if checksum_of(digests.view(np.uint8)).digest() != last.tobytes():
        raise DigestRunDamaged(path=run.path)
    return digests


def checksum_of(data: Any = b"") -> Any:
    """A checksum of some bytes, to which more can be added."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES)
