"""A server whose data is neither in its own memory nor in the system's."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
from pathlib import Path
from time import perf_counter

from synrepl.storage.launch.postgres import PostgresServer

#: Bytes of a page of PostgreSQL.
_PAGE = 8192


def restart_cold(server: PostgresServer) -> float:
    """Restart a server with empty shared buffers, and drop its data files from the page cache.

    Only pages of this server's files are dropped (``posix_fadvise``), since the machine's other programs
    have caches of their own. Whether the disk below caches is unknown.

    :returns: the part of the data, in MiB, that stayed in the page cache all the same
    """
    server.stop()
    files = [path for path in (server.data_dir / "postgres" / "base").rglob("*") if path.is_file()]
    for path in files:
        _drop(path)
    stayed = sum(_pages_in_memory(path) for path in files) * mmap.PAGESIZE / 2**20
    server.start()
    return stayed


def random_read(server: PostgresServer, reads: int = 200) -> float:
    """Seconds that a random read of a page from a file that is not in the page cache takes."""
    base = server.data_dir / "postgres" / "base"
    largest = max(base.rglob("*"), key=lambda path: path.stat().st_size)
    _drop(largest)
    chance, pages = random.Random(1), largest.stat().st_size // _PAGE
    descriptor = os.open(largest, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        began = perf_counter()
        for _ in range(reads):
            os.pread(descriptor, _PAGE, chance.randrange(pages) * _PAGE)
        return (perf_counter() - began) / reads
    finally:
        os.close(descriptor)


def _drop(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # only clean pages are dropped
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _pages_in_memory(path: Path) -> int:
    """Number of pages of a file in the page cache (``mincore``)."""
    size = path.stat().st_size
    if not size:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        pages = ctypes.create_string_buffer((size + mmap.PAGESIZE - 1) // mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        done = libc.mincore(address, size, pages)
        return 0 if done else sum(byte & 1 for byte in pages.raw)
