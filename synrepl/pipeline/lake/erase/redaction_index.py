"""The redactions of a lake, recorded so that each process only searches the rows that were landed since.

::

    redactions/<stream>.json   up to where the rows of a stream were searched, and the files with what was found
    redactions/*.digests       the events that are redacted, see digest_runs.py
    redactions/*.unused        notes of when such a file was found to be unused

All of it is made from the lake's rows: if it is deleted, they are searched once more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from synrepl.pipeline.lake.data_files import DataFile
from synrepl.pipeline.lake.erase.digest_runs import SUFFIX, checksum_of
from synrepl.pipeline.lake.erase.erasures import ErasureRule
from synrepl.pipeline.lake.erase.redacted_events import RedactedEvents, StoredRedactedEvents
from synrepl.pipeline.lake.erase.redactions import (
    BYTES_HERE,
    MOST_INLINE,
    FoundRedactions,
    RedactionSearch,
    find_redactions,
)
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.on_demand import SessionOnDemand
from synrepl.pipeline.lake.storage import (
    LakePath,
    ensure_folder,
    file_size,
    modification_time,
    read_bytes,
    replace_bytes,
)
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.lake.table_log import lake_errors
from synrepl.positions.vector import BadVector, PositionVector

#: Incremented when a later release can no longer read what this one writes, or has other rules.
VERSION = 1

#: Size of unrecorded files from which on what was found in them is recorded, in bytes.
WORTH_BYTES = BYTES_HERE // 4

_RECORD = ".json"

#: After the name of a file, the name of a note, which was written when no record named the first.
_UNUSED = ".unused"


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is recorded of a stream.

    :ivar upto: the position up to which its rows were searched
    :ivar redacted: the events that they redact
    :ivar checksum: of the others; a position or a digest that changed would leave cells as they are
    """

    version: int
    upto: dict[str, Any]
    redacted: StoredRedactedEvents
    checksum: str = ""

    def with_checksum(self) -> _Record:
        """The same with the checksum that it should have."""
        plain = msgspec.json.encode(msgspec.structs.replace(self, checksum=""))
        return msgspec.structs.replace(self, checksum=checksum_of(plain).hexdigest())

    @property
    def position(self) -> PositionVector:
        return PositionVector.from_json(self.upto)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.redacted.runs)


def redaction_folder(lake: Lake) -> LakePath:
    """The folder of a lake for redacted events."""
    return lake.path / "redactions"


class RedactionIndex:
    """The redactions of a lake. Keep one object, because it searches each row once.

    :param records: record what was found, for other processes. Use it within :meth:`.Lake.write_lock`
    """

    def __init__(self, lake: Lake, *, records: bool = False) -> None:
        self._folder = redaction_folder(lake)
        self._records = records
        self._streams: dict[str, _StreamIndex] = {}

    def update(
        self, spark: SessionOnDemand, table: StreamTable, rule: ErasureRule, since: PositionVector
    ) -> None:
        """Search the rows of a stream's table that have not been searched yet.

        :param since: redactions above it are new
        :raises LakeFailed: :raises FolderNotShared: :raises DataFileDamaged: :raises DigestRunDamaged:
        """
        stream = self._streams.get(table.stream)
        if stream is None:
            stream = self._streams[table.stream] = _StreamIndex(self._folder, table.stream)
        files = stream.update(spark, table, rule, since)
        if self._records:
            stream.record(files)

    def redacted(self, stream: str) -> RedactedEvents:
        """The events that the rows of a stream redact."""
        return self._streams[stream].found.redacted.events()

    def new(self, stream: str) -> RedactedEvents:
        """Those that new redactions redact."""
        return self._streams[stream].found.new.events()


class _StreamIndex:
    """The redactions of one stream.

    :ivar found: those up to ``_upto``, and the new ones between ``_since`` and ``_new_upto``
    """

    def __init__(self, folder: LakePath, stream: str) -> None:
        self._folder = folder
        self._path: LakePath = folder / f"{stream}{_RECORD}"
        self._recorded: _Record | None = None
        self._upto = self._since = self._new_upto = PositionVector()
        # While a writer is behind, the position does not tell that the rows of the others were searched.
        self._searched = frozenset[str]()
        self.found = FoundRedactions(folder)

    def update(
        self, spark: SessionOnDemand, table: StreamTable, rule: ErasureRule, since: PositionVector
    ) -> Sequence[DataFile]:
        """Search what was not; returns all files of the table."""
        recorded = _read_record(self._path)
        if recorded != self._recorded:
            # Another process has found as much, and may delete the files of this one.
            self._begin_with(recorded)
        if since != self._since:
            if not since.covers(self._upto):
                self._searched = frozenset()  # rows that were not new are new now
            self._since = self._new_upto = since
            self.found = FoundRedactions(self._folder, self.found.redacted.events())
        files, upto = table.files, table.position
        search = RedactionSearch(rule, _lower(self._upto, self._new_upto), self._new_upto)
        unsearched = [
            file
            for file in files
            if file.name not in self._searched and _may_be_above(search.since, file)
        ]
        find_redactions(spark, table, unsearched, search, self.found)
        self._upto = self._new_upto = upto
        self._searched = frozenset(file.name for file in files)
        return files

    def record(self, files: Sequence[DataFile]) -> None:
        """Record what was found in all files of the table, if it would take long to find it again."""
        before, upto = frozenset[str](), PositionVector()
        if self._recorded is not None:
            before, upto = self._recorded.names, self._recorded.position
        unrecorded = sum(file.size for file in files if _may_be_above(upto, file))
        found = self.found.redacted.events()
        if unrecorded <= WORTH_BYTES and before.issuperset(run.path.name for run in found.runs):
            return
        found = self.found.redacted.events(MOST_INLINE)
        record = _Record(VERSION, self._upto.to_json(), StoredRedactedEvents.of(found))
        record = record.with_checksum()
        if record != self._recorded:
            with lake_errors(self._folder, "written"):
                ensure_folder(self._folder)
                replace_bytes(self._path, msgspec.json.encode(record))
            self._recorded = record

    def _begin_with(self, record: _Record | None) -> None:
        self._recorded = record
        self._searched = frozenset()
        self._upto, self._new_upto = PositionVector(), self._since
        events = RedactedEvents()
        if record is not None:
            self._upto, events = record.position, record.redacted.events(self._folder)
        self.found = FoundRedactions(self._folder, events)


def remove_unused_runs(lake: Lake, age_hours: int) -> int:
    """Delete files with redacted events that no record names, and return their number.

    Call it within :meth:`.Lake.write_lock` and :meth:`.Lake.removal_lock`. In an object store these are no locks, and another
    process may still look into files that were just replaced, however old they are. So it is noted when a file was first found
    to be unused.

    :param age_hours: keep those that were written, or not known to be unused, within this time
    :raises LakeFailed:
    """
    folder = redaction_folder(lake)
    if not folder.is_dir():
        return 0
    given_up = time.time() - age_hours * 3600
    removed = 0
    with lake_errors(folder, "cleared"):
        there = {path.name: path for path in folder.iterdir()}
        # Those of a record that cannot be read are not used either.
        records = [_read_record(path) for name, path in there.items() if name.endswith(_RECORD)]
        used = {name for record in records if record is not None for name in record.names}
        unused = {
            name
            for name, path in there.items()
            if name.endswith(SUFFIX) and name not in used and _is_older(path, given_up)
        }
        for name in sorted(unused):
            note = there.get(name + _UNUSED)
            if age_hours and note is None:
                replace_bytes(folder / (name + _UNUSED), b"\n")
            elif note is None or _is_older(note, given_up):
                _delete(there[name])
                removed += 1
                unused.discard(name)
        for name, path in there.items():
            if name.endswith(_UNUSED) and name.removesuffix(_UNUSED) not in unused:
                _delete(path)
    return removed


def _is_older(path: LakePath, moment: float) -> bool:
    """Whether a file was written before a moment; False if another process has deleted it meanwhile."""
    try:
        return modification_time(path) <= moment
    except FileNotFoundError:
        return False


def _delete(path: LakePath) -> None:
    """Delete a file, unless another process has just done so."""
    with suppress(FileNotFoundError):
        path.unlink()


def _read_record(path: LakePath) -> _Record | None:
    """What is recorded of a stream; None if it is nothing that can be used.

    :raises LakeFailed: it cannot be read now
    """
    with lake_errors(path.parent, "read"):
        try:
            record = msgspec.json.decode(read_bytes(path), type=_Record)
            PositionVector.from_json(record.upto)
            runs = record.redacted.events(path.parent).runs
            whole = record.version == VERSION and record == record.with_checksum()
            usable = whole and all(file_size(run.path) == run.size for run in runs)
        except (FileNotFoundError, msgspec.DecodeError, BadVector, ValueError):
            return None
    return record if usable else None


def _lower(one: PositionVector, other: PositionVector) -> PositionVector:
    """What both cover."""
    if one.covers(other):
        return other
    return one if other.covers(one) else PositionVector()


def _may_be_above(position: PositionVector, file: DataFile) -> bool:
    """False if no row of a file is above a position."""
    return max(abs(file.low), abs(file.high)) > position.linear
