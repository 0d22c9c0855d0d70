"""The Delta log of a table: its version, properties and application transactions, and commits to it.

delta-rs reads the log and writes most commits. Two kinds are written here if the table is in a folder: those that create a
table, and those that only add files. Such a commit is a small file with a line of JSON for each action, which has to be the
first of its version. delta-rs takes milliseconds for one, because it reads the log before and after it, and a round of
landing commits to the tables of all streams.

Source: the Delta transaction log protocol, "Delta Log Entries" and "Actions".
"""

from __future__ import annotations

import math
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from synrepl.core.errors import StorageError
from synrepl.core.tokens import Token
from synrepl.pipeline.lake.storage import LakePath, ensure_folder, plain_error, sync

#: The folder of a table's log.
LOG = "_delta_log"

#: The protocol of tables that are created here. Commits of tables that need more are left to delta-rs.
_READER, _WRITER = 1, 2

#: How old a commit is that the system has written to the disk by itself, in seconds; Linux does after half a minute.
_WRITTEN_BACK_S = 600

#: A file that has not got its name yet, as delta-rs names it; it sees no such file, so its vacuum leaves them.
_DRAFT = re.compile(r".+#[0-9]+")

#: The age at which no process writes a draft any longer, in seconds; it takes milliseconds. A process that slept for
#: longer fails, and has committed nothing.
_DRAFT_S = 3600

#: The table property with the number of commits between two checkpoints, and its default in delta-rs.
_INTERVAL, _DEFAULT_INTERVAL = "delta.checkpointInterval", "100"


class LakeFailed(StorageError):
    """the lake's table {path} cannot be {what}: {reason}"""


class LogUnreadable(LakeFailed):
    """the lake's table {path} cannot be {what}: {reason}; if its log is damaged, 'synrepl lake repair' goes back to the newest version that can be read"""


class LakeConflict(LakeFailed):
    """the lake's table {path} cannot be {what}, because another process has changed it at the same time: {reason}; nothing was changed here, so run this again"""


@contextmanager
def lake_errors(path: LakePath, what: str, failed: type[LakeFailed] = LakeFailed) -> Iterator[None]:
    """Turn errors of delta-rs and of the file system into ours.

    :param what: completes the message "the lake's table … cannot be …"
    :param failed: the error for what is no conflict
    :raises LakeFailed: :raises LakeConflict:
    """
    try:
        yield
    except CommitFailedError as error:
        raise LakeConflict(path=path, what=what, reason=plain_error(error)) from None
    except (DeltaError, OSError) as error:
        raise failed(path=path, what=what, reason=plain_error(error)) from None


@dataclass(slots=True)
class _TableVersion:
    """What is known of one version of a table.

    :ivar version: -1 if the log has none yet
    :ivar is_plain: commits to it need nothing that is not written here
    :ivar creation: the actions that create the table, if the log has no version yet
    :ivar apps: by application, the version of its last transaction; None if it has none
    :ivar has_all_apps: other applications have none
    """

    version: int
    schema: Schema
    properties: Mapping[str, str]
    is_plain: bool
    creation: Sequence[Mapping[str, Any]] = ()
    apps: dict[str, int | None] = field(default_factory=dict)
    has_all_apps: bool = False

    @classmethod
    def of(cls, table: DeltaTable) -> _TableVersion:
        protocol, version = table.protocol(), table.version()
        is_plain = protocol.min_reader_version <= _READER and protocol.min_writer_version <= _WRITER
        return cls(version, table.schema(), dict(table.metadata().configuration), is_plain)


class AddedFile(Protocol):
    """A file that a commit adds, see :class:`.DataFile`."""

    @property
    def name(self) -> str:
        """Its name in the table's folder."""

    @property
    def size(self) -> int:
        """Its size in bytes."""

    @property
    def stats(self) -> str:
        """Its statistics, as JSON."""


class TableLog:
    """The log of a table, as of the construction of this object, the last :meth:`refresh`, or its own last commit.

    :raises LogUnreadable: it cannot be read
    """

    def __init__(self, path: LakePath, created: DeltaTable | _TableVersion | None = None) -> None:
        self._path = path
        if created is None:
            with lake_errors(path, "read", LogUnreadable):
                created = DeltaTable(str(path))
        # Loaded only when it is used: most tables that have been landed into are not, in this round.
        self._loaded = created if isinstance(created, DeltaTable) else None
        self._known = _TableVersion.of(created) if isinstance(created, DeltaTable) else created
        #: The version up to which the disk has commits and their names.
        self._durable_version = -1
        #: The version up to which the disk has what commits say, though perhaps not yet their names.
        self._written_version = -1
        #: The first version that was committed here. Later ones are made durable whatever their time says: a draft may
        #: have waited for its name.
        self._first_own: float = math.inf

    @classmethod
    def create(
        cls,
        path: LakePath,
        schema: Schema,
        name: str,
        properties: Mapping[str, str],
        *,
        with_files: bool = False,
    ) -> TableLog:
        """Create a table; a loss of power may take it back before :meth:`make_durable`.

        :param with_files: leave this to the first call of :meth:`add_files`, in one commit with its files. Object stores do
            not: their tables are created at once, and empty.
        :raises LakeFailed: there is one already, or it cannot be written
        """
        with lake_errors(path, "made"):
            if not isinstance(path, Path):
                empty = DeltaTable.create(
                    str(path),
                    schema,
                    name=name,
                    configuration=dict(properties),
                    raise_if_key_not_exists=False,
                )
                log = cls(path, empty)
                log._known.has_all_apps = True
                return log
            ensure_folder(path.parent)
            # Not by the tasks that write into it: a network file system remembers for a while that there was no such name.
            (path / LOG).mkdir(parents=True, exist_ok=True)
        creation = _creation(schema, name, properties)
        log = cls(path, _TableVersion(-1, schema, properties, True, creation, has_all_apps=True))
        if not with_files:
            log._create(path)
        return log

    @property
    def schema(self) -> Schema:
        """The columns of the table."""
        return self._known.schema

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties of the table."""
        return self._known.properties

    @property
    def delta(self) -> DeltaTable:
        """The table, for what delta-rs does; it loads the own commits, and with them those of others."""
        if self._known.creation and self._is_newest():
            assert isinstance(self._path, Path)
            self._create(self._path)
        if self._loaded is None or self._loaded.version() != self._known.version:
            return self._load()
        return self._loaded

    def refresh(self) -> None:
        """Load commits of other processes.

        :raises LakeFailed: the log cannot be read
        """
        if not self._is_newest():
            self._load()

    def app_version(self, app: str) -> int | None:
        """The version of an application's last transaction; None if it has none."""
        if app not in self._known.apps and not self._known.has_all_apps:
            delta = self.delta
            with lake_errors(self._path, "read"):  # the log is read again for each
                self._known.apps[app] = delta.transaction_version(app)
        return self._known.apps.get(app)

    def add_files(self, files: Sequence[AddedFile], apps: Mapping[str, Token], what: str) -> bool:
        """Commit files and transactions of applications.

        :returns: False if nothing was committed, because delta-rs has to do it: the table is not in a folder, a checkpoint
            is due, or another process has committed
        :raises LakeFailed: the commit cannot be written
        """
        if not isinstance(self._path, Path) or not self._known.is_plain or self._is_checkpoint_due:
            return False
        actions = [
            *self._known.creation,
            *(_transaction(app, version) for app, version in apps.items()),
            *map(_addition, files),
        ]
        self._write_earlier()
        with lake_errors(self._path, "written"):
            if not _write_commit(self._path, self._known.version + 1, "WRITE", actions, what):
                return False
        self._committed(apps)
        self._written_version = self._known.version
        return True

    def commit(
        self, on: DeltaTable, actions: list[Any], apps: Mapping[str, Token], what: str
    ) -> None:
        """Commit by delta-rs, which compares it with commits of others.

        :param on: :attr:`delta`, taken before it was decided what to commit
        :raises LakeConflict: :raises LakeFailed:
        """
        self._write_earlier()
        properties = CommitProperties(
            custom_metadata={"synrepl.operation": what},
            app_transactions=[Transaction(app, token) for app, token in apps.items()],
        )
        with lake_errors(self._path, "written"):
            on.create_write_transaction(
                actions, mode="append", schema=self._known.schema, commit_properties=properties
            )
        self._committed(apps)

    def make_durable(self) -> None:
        """Make sure that this version of the table survives a loss of power. Objects do as soon as they exist.

        Commits of others and of delta-rs count, too, since a table has no version after a lost one.

        :raises LakeFailed: the log cannot be reached
        """
        if not isinstance(self._path, Path):
            return
        log, newest = self._path / LOG, self._known.version
        written_back = time.time() - _WRITTEN_BACK_S
        named = newest  # the version up to which the disk has the names of commits
        with lake_errors(self._path, "written"):
            while named > self._durable_version:
                commit = log / commit_name(named)
                if not commit.exists():
                    break  # it was cleared, and so were those before it
                if named < self._first_own and commit.stat().st_mtime < written_back:
                    break  # it is old, and so are those before it
                named -= 1
            for version in range(max(named, self._written_version) + 1, newest + 1):
                sync(log / commit_name(version))
            # No more than is needed: a round of landing makes the tables of all streams durable.
            if named < newest:
                sync(log)
            if named < 0 <= newest:  # the table is new
                sync(self._path)
                sync(self._path.parent)
        self._durable_version = self._written_version = newest

    def _create(self, path: Path) -> None:
        with lake_errors(path, "made"):
            if not _write_commit(path, 0, "CREATE TABLE", self._known.creation):
                raise LakeFailed(path=path, what="made", reason="there is one already")
        self._committed({})
        self._written_version = 0

    def _write_earlier(self) -> None:
        """Make sure that the disk has what earlier commits say, before one with positions is added to them.

        Otherwise a loss of power may leave that one and an empty one before it, which readers take for one without files.
        """
        if self._known.version > self._written_version:
            self.make_durable()

    def _committed(self, apps: Mapping[str, Token]) -> None:
        # If somebody else has committed, too, the table has a later version, and this is forgotten.
        self._known.version += 1
        self._known.creation = ()
        self._first_own = min(self._first_own, self._known.version)
        self._known.apps.update(apps)

    def _load(self) -> DeltaTable:
        with lake_errors(self._path, "read", LogUnreadable):
            if self._loaded is None:
                self._loaded = DeltaTable(str(self._path))
            else:
                self._loaded.update_incremental()
            found, before = _TableVersion.of(self._loaded), self._known
        if found.version == before.version:
            found.apps, found.has_all_apps = before.apps, before.has_all_apps
        self._known = found
        return self._loaded

    def _is_newest(self) -> bool:
        """Whether nobody has committed since; False if only the log as a whole tells."""
        if not isinstance(self._path, Path):
            return False
        last, next_ = (self._path / LOG / commit_name(self._known.version + n) for n in (0, 1))
        # Where a log has been cleared after a checkpoint, the newest commit is still there.
        return (bool(self._known.creation) or last.exists()) and not next_.exists()

    @property
    def _is_checkpoint_due(self) -> bool:
        """Whether delta-rs writes a checkpoint after the next commit, and removes what has expired."""
        interval = int(self._known.properties.get(_INTERVAL, _DEFAULT_INTERVAL))
        return (self._known.version + 2) % max(1, interval) == 0


def commit_name(version: int) -> str:
    """The name of a commit in the log."""
    return f"{version:020}.json"


def remove_unused(path: LakePath, delta: DeltaTable, retention_hours: int) -> int:
    """Delete files that do not belong to a table, and return their number; also drafts, which are not counted.

    :param retention_hours: keep files that were replaced, or written in vain, within this time
    :raises LakeFailed:
    """
    with lake_errors(path, "cleared"):
        if isinstance(path, Path):
            for folder in path, path / LOG:
                _remove_drafts(folder)
        there = {each.name for each in path.iterdir()}
        gone = delta.vacuum(
            retention_hours=retention_hours,
            dry_run=False,
            enforce_retention_duration=False,
            full=True,
        )
    # The result includes files deleted earlier, for as long as they are in the log.
    return len(there.intersection(gone))


def _remove_drafts(folder: Path) -> None:
    """Delete drafts that killed processes have left."""
    given_up = time.time() - _DRAFT_S
    for path in folder.iterdir():
        if _DRAFT.fullmatch(path.name):
            with suppress(FileNotFoundError):  # its process has just deleted it
                if path.stat().st_mtime < given_up:
                    path.unlink()


def _write_commit(
    table: Path, version: int, operation: str, actions: Sequence[Mapping[str, Any]], what: str = ""
) -> bool:
    """Add a commit to the log of a table, whole or not at all; False if there is one of this version.

    What it says is on the disk before it has its name. The name is when it was made durable.
    """
    info: dict[str, Any] = {
        "timestamp": _now_ms(),
        "operation": operation,
        "operationParameters": {"mode": "Append"} if what else {},
        "engineInfo": "synrepl",
    }
    if what:
        info["synrepl.operation"] = what
    draft = table / LOG / f"{commit_name(version)}#{uuid.uuid4().int}"
    try:
        with draft.open("xb") as file:
            file.write(msgspec.json.Encoder().encode_lines([{"commitInfo": info}, *actions]))
            # Before it gets its name: otherwise a loss of power may leave an empty commit.
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, table / LOG / commit_name(version))
    except FileExistsError:
        # NFS says so, too, if the answer to a link was lost and it was asked for again: see link(2), "BUGS".
        return draft.stat().st_nlink == 2
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()
    return True


def _creation(schema: Schema, name: str, properties: Mapping[str, str]) -> list[Mapping[str, Any]]:
    metadata: Mapping[str, Any] = {
        "id": str(uuid.uuid4()),
        "name": name,
        "description": None,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema.to_json(),
        "partitionColumns": [],
        "createdTime": _now_ms(),
        "configuration": properties,
    }
    protocol = {"minReaderVersion": _READER, "minWriterVersion": _WRITER}
    return [{"protocol": protocol}, {"metaData": metadata}]


def _transaction(app: str, version: Token) -> Mapping[str, Any]:
    return {"txn": {"appId": app, "version": version}}


def _addition(file: AddedFile) -> Mapping[str, Any]:
    added = {
        "path": file.name,
        "partitionValues": {},
        "size": file.size,
        "modificationTime": _now_ms(),
        "dataChange": True,
        "stats": file.stats,
    }
    return {"add": added}


def _now_ms() -> int:
    return int(time.time() * 1000)
