"""Commits to the log of a table that are not delta-rs's: it and other readers have to find what they say."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Field, TableFeatures, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.transaction import AddAction, CommitProperties
from twisted.trial.unittest import SynchronousTestCase

from synrepl.pipeline.lake.data_files import DataFile
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.lake.table_log import LOG, LakeFailed, LogUnreadable, TableLog, commit_name
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.streams.columns import Column, ColumnType, columns
from tests.storage.samples import EVERYTHING

SCHEMA = StreamSchema("everything", False, columns(EVERYTHING))


def file(number: int) -> DataFile:
    """The description of a file; it is not read."""
    return DataFile(f"part-{number}.parquet", 100 + number, 10, number, number + 9)


class LogCase(SynchronousTestCase):
    """A test case with a table of all types of columns."""

    timeout = 60

    def setUp(self) -> None:
        self.path = Path(self.mktemp()).absolute()
        self.table = StreamTable.create(self.path, SCHEMA, ["w"])
        self.log = TableLog(self.path)

    def engine(self, version: int) -> str:
        """What wrote a commit."""
        lines = (self.path / LOG / commit_name(version)).read_text().splitlines()
        return str(json.loads(lines[0])["commitInfo"]["engineInfo"]).partition(":")[0]

    def land(self, version: int, log: TableLog | None = None) -> bool:
        """Commit a file and a transaction of the application "a"."""
        return (log or self.log).add_files([file(version)], {"a": version}, "land")

    def elsewhere(self, **more: Any) -> None:
        """Let another process commit by delta-rs."""
        table = DeltaTable(self.path)
        added = AddAction("other.parquet", 7, {}, 1, True, file(1).stats)
        table.create_write_transaction([added], "append", table.schema(), **more)


class DamagedLogs(LogCase):
    """What is said of a log that cannot be read, without the internals of delta-rs."""

    def refusal(self) -> str:
        with self.assertRaises(LogUnreadable) as caught:
            StreamTable.opened(self.path)
        return str(caught.exception)

    def test_a_lost_commit(self) -> None:
        for version in 1, 2, 3:
            self.land(version)
        (self.path / LOG / commit_name(2)).unlink()
        said = self.refusal()
        self.assertIn("but found gap; if its log is damaged, 'synrepl lake repair'", said)

    def test_a_damaged_commit(self) -> None:
        (self.path / LOG / commit_name(1)).write_text("{torn")
        said = self.refusal()
        self.assertIn("synrepl lake repair", said)
        self.assertNotIn("0: ", said)


class CommitsToTheLog(LogCase):
    """What is committed."""

    def test_a_table_is_created_as_delta_rs_creates_it(self) -> None:
        made = DeltaTable(self.path)
        metadata = made.metadata()
        other = DeltaTable.create(
            self.mktemp(),
            made.schema(),
            name="everything",
            configuration=metadata.configuration,
            raise_if_key_not_exists=False,
        )
        self.assertEqual(made.schema(), other.schema())
        self.assertEqual(made.protocol(), other.protocol())
        self.assertEqual(made.version(), other.version())
        for name in ("name", "description", "partition_columns", "configuration"):
            self.assertEqual(getattr(metadata, name), getattr(other.metadata(), name), name)
        self.assertEqual(StreamTable(self.path).stream_schema.columns[3:], nullable(SCHEMA.cells))

    def test_a_table_is_created_once(self) -> None:
        error = self.assertRaises(LakeFailed, StreamTable.create, self.path, SCHEMA)
        self.assertIn("cannot be made: there is one already", str(error))

    def test_files_are_added_as_delta_rs_adds_them(self) -> None:
        self.assertTrue(self.land(1))
        other = StreamTable.create(Path(self.mktemp()), SCHEMA, ["w"])
        theirs = DeltaTable(other.path)
        one = file(1)
        theirs.create_write_transaction(
            [AddAction(one.name, one.size, {}, 1, True, one.stats)],
            "append",
            theirs.schema(),
            commit_properties=CommitProperties(app_transactions=[Transaction("a", 1)]),
        )
        found = [
            pa.table(table.get_add_actions(flatten=True)).drop_columns(["modification_time"])
            for table in (DeltaTable(self.path), DeltaTable(other.path))
        ]
        self.assertEqual(found[0], found[1])
        self.assertEqual(DeltaTable(self.path).transaction_version("a"), 1)
        self.assertEqual((self.engine(0), self.engine(1)), ("synrepl", "synrepl"))
        self.assertEqual(sorted(self.path.rglob("*#*")), [])

    def test_delta_rs_goes_on_from_them(self) -> None:
        for version in (1, 2):
            self.land(version)
        self.elsewhere()
        table = DeltaTable(self.path)
        self.assertEqual((table.version(), len(table.file_uris())), (3, 3))


def nullable(cells: tuple[Column, ...]) -> tuple[Column, ...]:
    """Cells as a table has them: each may have been erased."""
    return tuple(cell._replace(nullable=True) for cell in cells)


class CommitsLeftToDeltaRs(LogCase):
    """When nothing is committed here."""

    def test_another_process_has_committed_since(self) -> None:
        self.elsewhere()
        self.assertFalse(self.land(1))
        self.log.refresh()
        self.assertTrue(self.land(2))

    def test_another_process_has_committed_and_cleared_the_log(self) -> None:
        expire = {
            "delta.checkpointInterval": "2",
            "delta.logRetentionDuration": "interval 0 seconds",
        }
        DeltaTable(self.path).alter.set_table_properties(expire)
        self.log.refresh()
        for _ in range(4):
            self.elsewhere()
        there = {path.name for path in (self.path / LOG).iterdir()}
        self.assertNotIn(commit_name(2), there)  # it would be free
        self.log.refresh()
        self.assertEqual(self.log.delta.version(), 5)
        self.assertEqual(len(self.log.delta.file_uris()), 1)

    def test_a_checkpoint_is_due(self) -> None:
        DeltaTable(self.path).alter.set_table_properties({"delta.checkpointInterval": "3"})
        self.log.refresh()
        self.assertFalse(self.land(2))
        self.elsewhere()
        self.log.refresh()
        self.assertEqual([self.land(version) for version in (3, 4, 5)], [True, True, False])
        self.assertTrue((self.path / LOG / "_last_checkpoint").exists())

    def test_the_table_needs_a_newer_protocol(self) -> None:
        DeltaTable(self.path).alter.add_feature(
            TableFeatures.ChangeDataFeed, allow_protocol_versions_increase=True
        )
        self.log.refresh()
        self.assertFalse(self.land(2))
        self.log.commit(self.log.delta, [], {"a": 2}, "land")
        self.assertEqual((self.engine(2), self.log.app_version("a")), ("delta-rs", 2))


class NewTables(SynchronousTestCase):
    """Tables that appear with their first files, in one commit."""

    def setUp(self) -> None:
        self.path = Path(self.mktemp()).absolute()
        self.log = self.created()

    def created(self) -> TableLog:
        schema = DeltaSchema([Field("n", "long")])
        return TableLog.create(self.path, schema, "numbers", {"a": "b"}, with_files=True)

    def test_the_first_commit_makes_them(self) -> None:
        self.assertFalse(StreamTable.exists(self.path))
        self.log.refresh()
        self.assertTrue(self.log.add_files([file(1)], {"a": 7}, "land"))
        table = DeltaTable(self.path)
        self.assertEqual((table.version(), len(table.file_uris())), (0, 1))
        self.assertEqual(table.metadata().configuration, {"a": "b"})
        self.assertEqual((table.transaction_version("a"), self.log.app_version("a")), (7, 7))
        self.assertTrue(self.log.add_files([file(11)], {"a": 8}, "land"))
        self.assertEqual(len(self.log.delta.file_uris()), 2)

    def test_a_round_that_fails_leaves_none(self) -> None:
        self.log.make_durable()
        self.assertIsNone(StreamTable.opened(self.path))
        self.assertTrue(self.created().add_files([file(1)], {}, "land"))

    def test_what_only_delta_rs_does_makes_them_empty(self) -> None:
        self.assertEqual(self.log.delta.version(), 0)
        self.assertTrue(self.log.add_files([file(1)], {}, "land"))
        self.assertEqual(DeltaTable(self.path).version(), 1)

    def test_another_process_made_it_first(self) -> None:
        self.assertTrue(self.created().add_files([file(1)], {"a": 7}, "land"))
        self.assertFalse(self.log.add_files([file(1)], {"a": 7}, "land"))
        self.assertEqual((self.log.delta.version(), self.log.app_version("a")), (0, 7))

    def test_another_process_made_it_before_it_was_looked_for(self) -> None:
        self.assertTrue(self.created().add_files([file(1)], {"a": 7}, "land"))
        self.log.refresh()
        self.assertEqual(self.log.app_version("a"), 7)


class DurableVersions(LogCase):
    """What is written to the disk before a landing goes on."""

    def setUp(self) -> None:
        super().setUp()
        self.synced: list[str] = []
        fsync = os.fsync

        def noted(descriptor: int) -> None:
            fsync(descriptor)
            name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
            self.synced.append(name.partition("#")[0])

        self.patch(os, "fsync", noted)

    def made_durable(self) -> list[str]:
        self.synced.clear()
        self.log.make_durable()
        return self.synced

    def test_a_new_table_is_with_its_folders(self) -> None:
        self.assertEqual(
            self.made_durable(), [commit_name(0), LOG, self.path.name, self.path.parent.name]
        )

    def test_all_recent_commits_are_and_each_once(self) -> None:
        self.elsewhere()
        self.elsewhere()
        self.log.refresh()
        commits = [commit_name(version) for version in range(3)]
        self.assertEqual(self.made_durable()[:4], [*commits, LOG])
        self.assertEqual(self.made_durable(), [])
        self.elsewhere()
        self.log.refresh()
        self.assertEqual(self.made_durable(), [commit_name(3), LOG])

    def test_old_ones_are_already(self) -> None:
        for version in range(2):
            os.utime(self.path / LOG / commit_name(0), (0, 0))
            self.assertEqual(self.made_durable(), [commit_name(1), LOG] if version else [])
            self.elsewhere()
            self.log.refresh()

    def test_those_of_others_are_before_an_own_one_gets_its_name(self) -> None:
        link = os.link

        def linked(draft: Path, name: Path) -> None:
            self.assertEqual(self.synced[:3], [commit_name(0), commit_name(1), LOG])
            link(draft, name)

        self.elsewhere()
        self.log.refresh()
        self.patch(os, "link", linked)
        self.assertTrue(self.land(2))
        self.assertEqual(self.made_durable(), [LOG])

    def test_own_ones_are_with_their_names(self) -> None:
        self.log.make_durable()
        self.synced.clear()
        self.assertTrue(self.land(1) and self.land(2))
        self.assertEqual(self.synced, [commit_name(1), commit_name(2)])
        self.assertEqual(self.made_durable(), [LOG])
        self.assertEqual(self.made_durable(), [])

    def test_an_own_one_is_even_if_its_draft_has_waited_for_its_name(self) -> None:
        link = os.link

        def linked(draft: Path, name: Path) -> None:
            os.utime(draft, (time.time() - 1200,) * 2)
            link(draft, name)

        self.log.make_durable()
        self.patch(os, "link", linked)
        self.assertTrue(self.land(1))
        self.assertEqual(self.made_durable(), [LOG])

    def test_what_an_own_one_says_is_before_it_has_its_name(self) -> None:
        self.log.make_durable()
        synced: list[tuple[str, int]] = []
        fsync, link = os.fsync, os.link

        def noted(descriptor: int) -> None:
            size = os.fstat(descriptor).st_size
            synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), size))
            fsync(descriptor)

        def linked(draft: Path, name: Path) -> None:
            self.assertEqual(synced, [(str(draft), draft.stat().st_size)])
            link(draft, name)

        self.patch(os, "fsync", noted)
        self.patch(os, "link", linked)
        self.assertTrue(self.land(1))
        self.assertEqual(len(synced), 1)


class DraftsOfCommits(LogCase):
    """What killed processes leave: files that have not got their names."""

    def left_behind(self, name: str, age_s: float) -> Path:
        """A file in the table's folder."""
        path = self.path / name
        path.write_text("")
        os.utime(path, (time.time() - age_s,) * 2)
        return path

    def test_are_deleted_with_unused_files_when_no_process_can_want_them(self) -> None:
        names = "part-1.parquet", f"{LOG}/{commit_name(1)}", f"{LOG}/_last_checkpoint"
        old = [self.left_behind(f"{name}#12", 3700) for name in names]
        young = [self.left_behind(f"{name}#1", 3500) for name in names]
        commit = self.path / LOG / commit_name(0)
        os.utime(commit, (0, 0))
        self.assertEqual(self.table.remove_unused(retention_hours=0), 0)
        self.assertEqual(
            [path for path in (*old, *young, commit) if path.exists()], [*young, commit]
        )

    def test_are_no_versions(self) -> None:
        link = os.link

        def linked(draft: Path, name: Path) -> None:
            self.assertEqual(DeltaTable(self.path).version(), 0)
            link(draft, name)
            self.assertEqual(DeltaTable(self.path).version(), 1)

        self.patch(os, "link", linked)
        self.assertTrue(self.land(1))

    def test_a_commit_is_there_if_only_the_answer_to_its_link_was_lost(self) -> None:
        link = os.link

        def linked(draft: Path, name: Path) -> None:
            for _ in range(2):
                link(draft, name)

        self.patch(os, "link", linked)
        self.assertTrue(self.land(1))
        self.assertEqual(DeltaTable(self.path).transaction_version("a"), 1)

    def test_a_commit_whose_draft_was_deleted_fails(self) -> None:
        link = os.link

        def linked(draft: Path, name: Path) -> None:
            os.utime(draft, (0, 0))
            self.table.remove_unused(retention_hours=0)
            link(draft, name)

        self.patch(os, "link", linked)
        self.assertRaises(LakeFailed, self.land, 1)
        self.assertEqual(DeltaTable(self.path).version(), 0)


class KnownVersions(LogCase):
    """What is known of a table without reading its log."""

    def test_own_commits_are_known(self) -> None:
        self.patch(DeltaTable, "update_incremental", None)
        self.assertEqual([self.log.app_version(name) for name in "ab"], [None, None])
        for version in (1, 2):
            self.assertTrue(self.land(version))
            self.log.refresh()
        self.assertEqual((self.log.app_version("a"), self.log.app_version("b")), (2, None))

    def test_those_of_others_are_read(self) -> None:
        self.land(1)
        other = TableLog(self.path)
        self.assertEqual(other.app_version("a"), 1)
        self.land(2, other)
        self.assertEqual(self.log.app_version("a"), 1)
        self.log.refresh()
        self.assertEqual(self.log.app_version("a"), 2)

    def test_delta_rs_loads_own_commits_when_it_is_used(self) -> None:
        self.land(1)
        self.assertEqual(self.log.delta.version(), 1)
        self.assertEqual(self.log.properties["synrepl.writers"], '["w"]')
        self.assertEqual(self.log.schema, DeltaTable(self.path).schema())

    def test_columns_by_another_process_are_seen(self) -> None:
        more = (*SCHEMA.cells, Column("more", ColumnType.TEXT, True))
        StreamTable(self.path).widen(StreamSchema("everything", False, more))
        self.table.refresh()
        self.assertEqual(self.table.stream_schema.cells[-1].name, "more")
