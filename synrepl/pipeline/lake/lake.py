"""The folder or URL of a lake, and its locks.

::

    synrepl-lake.json     marker: the database whose streams these are
    synrepl-lake.lock     locked by the one process that changes the lake
    synrepl-lake.readers  locked, shared, by readers of files, so that no file is removed meanwhile
    streams/<stream>/     a Delta table for each stream
    quarantine/<stream>/  a Delta table for each stream with rows that do not fit their columns
    marks/                a Delta table: the watermarks of the streams
    redactions/           the redactions found in the streams, see erase/redaction_index.py
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import msgspec

from synrepl.core.errors import InputError, Refused, StorageError
from synrepl.pipeline.lake.storage import (
    LakePath,
    ensure_folder,
    lake_location,
    read_bytes,
    reason_of,
    replace_bytes,
)
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.source.database.stream_schema import StreamSchema, quarantine_schema
from synrepl.pipeline.source.database.whole_events import has_whole_events

MARKER = "synrepl-lake.json"
LOCK = "synrepl-lake.lock"
READERS = "synrepl-lake.readers"

#: Least age in an object store at which unused files are removed, in hours: no landing may take longer from the first
#: file that it writes to its commit, because another process would take the file for unused.
SHARED_REMOVAL_AGE_HOURS = 1

#: Incremented when a later release can no longer read what this one writes.
FORMAT = 1

#: Characters that a path may not contain: Delta tables are written to one place and read from another then.
_NOT_IN_PATHS = re.compile(r"[\x00-\x1f\x7f%\[\]\\^|]")


class NotALake(InputError):
    """{path} is no lake: {reason}; give the folder that 'synrepl lake land' was given, or an empty one to begin a lake"""


class OtherFormat(Refused):
    """the lake {path} has format {found}, and this release of synrepl reads {known}; use the release that wrote it, or a newer one"""


class LakeOfAnother(Refused):
    """the lake {path} is of database {then}, and this is {now}: positions of one say nothing about the other; use the database it was begun with, or begin another lake in an empty folder"""


class LakeBusy(Refused):
    """another process is changing the lake {path}; wait until it is done, or stop it"""


class LockFailed(StorageError):
    """the lake {path} cannot be locked: {reason}; also who only reads it has to be able to write to its folder"""


class NotInTheLake(InputError):
    """stream {stream!r} is not in the lake {path}; it has {streams}"""


class LakeMarker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of the marker file.

    :ivar server: identifies the landed database, see :attr:`.SourceDatabase.server`
    :ivar is_lossy: :attr:`.SourceDatabase.is_lossy` of that database; ``erodes`` in the file
    """

    format: int
    server: str
    is_lossy: bool = msgspec.field(name="erodes")


class Lake:
    """An existing lake.

    :param path: its folder, or its URL in an object store

    :raises LakeAtUrl: :raises NotALake: :raises OtherFormat:
    """

    def __init__(self, path: str | LakePath) -> None:
        self.path = lake_location(path)
        self.marker = _read_marker(self.path)

    @classmethod
    def open_or_create(cls, path: str | LakePath, server: str, is_lossy: bool) -> Lake:
        """Open the lake of a database; create it if the folder is empty or does not exist.

        :raises LakeAtUrl: the path is a URL where no lake can be
        :raises NotALake: the folder holds something else
        :raises LakeOfAnother: it is the lake of another database
        """
        path = lake_location(path)
        if isinstance(path, Path):
            if not (path / MARKER).exists():
                _make_folder(path, LakeMarker(FORMAT, server, is_lossy))
        elif MARKER not in (names := [each.name for each in _children(path)]):
            _make(path, names, LakeMarker(FORMAT, server, is_lossy))
        lake = cls(path)
        lake.require_server(server)
        return lake

    def require_server(self, server: str) -> None:
        """Check that the lake is of this database.

        :raises LakeOfAnother: it was created for another one
        """
        if self.marker.server != server:
            raise LakeOfAnother(path=self.path, then=self.marker.server, now=server)

    @property
    def is_shared(self) -> bool:
        """True in an object store, which has no locks: other processes may change the lake meanwhile."""
        return not isinstance(self.path, Path)

    @property
    def streams(self) -> list[str]:
        """The names of the streams in the lake."""
        folder = self.path / "streams"
        found: Iterable[LakePath] = folder.iterdir() if folder.is_dir() else ()
        return sorted(each.name for each in found if StreamTable.exists(each))

    def whole_event_table(self, stream: str) -> StreamTable | None:
        """The table of a stream of whole events; None if there is none, or one of a stream declared under its name."""
        table = self.table(stream) if self.has_stream(stream) else None
        return table if table is not None and has_whole_events(table.stream_schema) else None

    def has_stream(self, stream: str) -> bool:
        """True if the lake has a table of a stream."""
        return _is_name(stream) and StreamTable.exists(self._folder(stream))

    def table(self, stream: str) -> StreamTable:
        """The table of a stream.

        :raises NotInTheLake: the stream has none
        """
        table = StreamTable.opened(self._folder(stream)) if _is_name(stream) else None
        if table is None:
            known = ", ".join(self.streams) or "none"
            raise NotInTheLake(stream=stream[:100], path=self.path, streams=known)
        return table

    def ensure_table(
        self,
        stream_schema: StreamSchema,
        writers: Iterable[str] = (),
        *,
        with_files: bool = False,
    ) -> StreamTable:
        """The table of a stream; it is created, or widened by new columns, if necessary.

        :param writers: :param with_files: see :meth:`.StreamTable.create`
        :raises SchemaChanged: the columns contradict those of the table
        """
        folder = self._folder(stream_schema.stream)
        table = StreamTable.opened(folder)
        return (
            StreamTable.create(folder, stream_schema, writers, with_files=with_files)
            if table is None
            else table.widen(stream_schema)
        )

    def quarantine_folder(self, stream: str) -> LakePath:
        """The folder of a stream's quarantine, which may not exist."""
        return self.path / "quarantine" / stream

    def quarantine(self, stream: str) -> StreamTable | None:
        """The quarantine table of a stream; None if it has none."""
        folder = self.quarantine_folder(stream)
        return StreamTable(folder) if StreamTable.exists(folder) else None

    def ensure_quarantine(self, stream_schema: StreamSchema) -> StreamTable:
        """The quarantine table of a stream, created if necessary."""
        found = self.quarantine(stream_schema.stream)
        folder = self.quarantine_folder(stream_schema.stream)
        return (
            StreamTable.create(folder, quarantine_schema(stream_schema)) if found is None else found
        )

    def _folder(self, stream: str) -> LakePath:
        return self.path / "streams" / stream

    @contextmanager
    def write_lock(self) -> Iterator[None]:
        """Lock the lake for changes by this process.

        In an object store this does nothing: of two processes that change a table at once, the commit
        of one fails.

        :raises LakeBusy: another process has locked it
        """
        if not isinstance(self.path, Path):
            yield
            return
        with _locked(self.path / LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB) as got:
            if not got:
                raise LakeBusy(path=self.path)
            yield

    @contextmanager
    def read_lock(self) -> Iterator[None]:
        """Prevent the removal of files, which may be read; in an object store, only the retention does."""
        if not isinstance(self.path, Path):
            yield
            return
        with _locked(self.path / READERS, fcntl.LOCK_SH):
            yield

    def removal_age(self, retention_hours: int) -> int:
        """The age at which unused files of a table may be removed, in hours.

        :param retention_hours: how long they are to be kept for readers
        """
        return max(SHARED_REMOVAL_AGE_HOURS if self.is_shared else 0, retention_hours)

    @contextmanager
    def removal_lock(self, *, wait: bool = True) -> Iterator[bool]:
        """Lock out readers, to remove files.

        :param wait: wait until nobody reads; otherwise it may yield False, and nothing may be removed
        """
        if not isinstance(self.path, Path):
            yield True
            return
        how = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
        with _locked(self.path / READERS, how) as got:
            yield got


@contextmanager
def _locked(path: Path, how: int) -> Iterator[bool]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise LockFailed(path=path.parent, reason=reason_of(error)) from None
    try:
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _is_name(stream: str) -> bool:
    return "/" not in stream and stream not in ("", ".", "..")


def _children(path: LakePath) -> list[LakePath]:
    try:
        return [*path.iterdir()]
    except OSError as error:
        raise NotALake(path=path, reason=f"it cannot be listed ({reason_of(error)})") from None


def _make_folder(path: Path, marker: LakeMarker) -> None:
    try:
        ensure_folder(path)
        names = [each.name for each in path.iterdir()]
    except (NotADirectoryError, FileExistsError):
        raise NotALake(path=path, reason="it is a file") from None
    except OSError as error:
        raise NotALake(path=path, reason=reason_of(error)) from None
    _make(path, names, marker)


def _make(path: LakePath, names: Iterable[str], marker: LakeMarker) -> None:
    """Write the marker, unless there is something else.

    :param names: what there is
    """
    meant = str(path) if isinstance(path, Path) else unquote(str(path))
    if odd := _NOT_IN_PATHS.search(meant):
        reason = f"its path has {odd[0]!r} in it, which not all that read Delta tables get right"
        raise NotALake(path=path, reason=reason)
    strangers = sorted(name for name in names if not name.startswith(MARKER))
    if strangers:
        raise NotALake(path=path, reason=f"it has no {MARKER}, and holds {strangers[0]!r}")
    try:
        replace_bytes(path / MARKER, msgspec.json.encode(marker) + b"\n")
    except OSError as error:
        raise NotALake(
            path=path, reason=f"{MARKER} cannot be written ({reason_of(error)})"
        ) from None


def _read_marker(path: LakePath) -> LakeMarker:
    try:
        data = read_bytes(path / MARKER)
    except OSError as error:
        reason = f"{MARKER} cannot be read ({reason_of(error)})"
        raise NotALake(path=path, reason=reason) from None
    try:
        found = msgspec.json.decode(data, type=dict[str, object]).get("format")
        if found != FORMAT:
            raise OtherFormat(path=path, found=str(found)[:20], known=FORMAT)
        return msgspec.json.decode(data, type=LakeMarker)
    except msgspec.DecodeError as error:
        raise NotALake(path=path, reason=f"{MARKER} is damaged ({error})") from None
