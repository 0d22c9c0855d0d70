"""Answers of other servers while they arrive: in memory, and in a file without a name once they are large."""

from __future__ import annotations

from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import BinaryIO, cast

from synrepl.core.errors import Unavailable
from synrepl.federation.errors import AnswerTooLarge
from synrepl.federation.requests import MAX_READ

#: Size above which an answer goes to a file, in bytes.
IN_MEMORY = 256 * 2**10


class CannotSpool(Unavailable):
    """an answer cannot be kept in {directory}: {reason}; make room there, or set 'spool_dir' of 'rooms.federation' to another directory"""


class SpoolUsage:
    """What answers take.

    :ivar in_files: bytes of answers that are in files now
    :ivar total: bytes of all answers so far
    """

    def __init__(self) -> None:
        self.in_files = 0
        self.total = 0


class SpooledAnswer:
    """The body of an answer; implements :class:`~synrepl.federation.requests.SpooledBody`.

    A file has no name, so it is gone when the process ends, however it ends.

    :param directory: for files; None for the system's directory for temporary files
    :param where: the server and the request, for errors
    """

    def __init__(self, directory: Path | None, usage: SpoolUsage, where: str) -> None:
        self._directory = directory
        self._usage = usage
        self._where = where
        self._file = SpooledTemporaryFile(  # noqa: SIM115 - it is closed by whoever gets the answer
            max_size=IN_MEMORY, dir=None if directory is None else str(directory)
        )
        self._in_file = 0
        self._size = 0

    @property
    def size(self) -> int:
        """In bytes."""
        return self._size

    def write(self, data: bytes) -> None:
        """Add to it.

        :raises CannotSpool: there is no room
        """
        try:
            self._file.write(data)
        except OSError as error:
            raise CannotSpool(
                directory=self._directory or "the directory for temporary files",
                reason=error.strerror,
            ) from error
        self._size += len(data)
        self._usage.total += len(data)
        if self._size > IN_MEMORY:
            self._usage.in_files += self._size - self._in_file
            self._in_file = self._size

    def read(self, most: int = MAX_READ) -> bytes:
        """The whole body.

        :raises AnswerTooLarge: it is larger than ``most`` bytes
        """
        if self._size > most:
            raise AnswerTooLarge(where=self._where, limit=most)
        return self.open().read()

    def open(self) -> BinaryIO:
        """The body from its beginning. Only one reader at a time; it need not be closed."""
        self._file.seek(0)
        return cast(BinaryIO, self._file)

    def close(self) -> None:
        """Release memory and file; may be called again."""
        self._file.close()
        self._usage.in_files -= self._in_file
        self._in_file = 0
