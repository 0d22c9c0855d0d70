"""The folder of a lake: its marker, streams and locks."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from synrepl.pipeline.lake.lake import (
    LOCK,
    MARKER,
    Lake,
    LakeBusy,
    LakeOfAnother,
    LockFailed,
    NotALake,
    NotInTheLake,
    OtherFormat,
)
from synrepl.pipeline.lake.storage import LakeAtUrl, ObjectPath, lake_location
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.positions.vector import PositionVector
from synrepl.streams.columns import columns
from system_tests.pipeline.spark_fixture import run_child
from tests.storage.samples import NOTES

#: In a lake every cell may be null.
SHAPE = StreamSchema("notes", False, tuple(each._replace(nullable=True) for each in columns(NOTES)))


class LakeCase(SynchronousTestCase):
    """A path at which nothing exists."""

    timeout = 60

    def setUp(self) -> None:
        self.path = Path(self.mktemp()).absolute()

    def begin(self, server: str = "one") -> Lake:
        return Lake.open_or_create(self.path, server, False)

    def refused(self, kind: type[Exception], *words: str, call: Callable[[], Any]) -> None:
        """Check that a call fails with a message that names the folder."""
        error = self.assertRaises(kind, call)
        for word in (str(self.path), *words):
            self.assertIn(word, str(error))


class LakeMarkers(LakeCase):
    """Creating and opening lakes."""

    def test_a_created_lake_can_be_opened(self) -> None:
        made = Lake.open_or_create(self.path / "below", "one", True)
        for again in (
            Lake(self.path / "below"),
            Lake.open_or_create(self.path / "below", "one", True),
        ):
            self.assertEqual(again.marker, made.marker)
        self.assertEqual((made.marker.server, made.marker.is_lossy), ("one", True))
        self.assertEqual(made.streams, [])

    def test_a_relative_path_is_resolved_when_the_lake_is_opened(self) -> None:
        here = Path.cwd()
        self.path.mkdir()
        os.chdir(self.path)
        try:
            lakes = [Lake.open_or_create(Path("lake"), "one", False), Lake(Path("lake"))]
        finally:
            os.chdir(here)
        self.assertEqual([lake.path for lake in lakes], [self.path / "lake"] * 2)

    def test_refuses_urls_where_no_lake_can_be(self) -> None:
        for path in ("hdfs://host/lake", "hdfs:lake", "C:lake", "s3:bucket/lake", "s3:///lake",
                     "s3://bucket/lake?x=1", "file://host/lake", "file:lake", "http://a/b"):  # fmt: skip
            calls: list[Callable[[], Any]] = [
                partial(Lake, path),
                partial(Lake.open_or_create, path, "one", False),
            ]
            for call in calls:
                error = self.assertRaises(LakeAtUrl, call)
                self.assertIn(f"'{path}' is no place for a lake", str(error))
            self.assertFalse(Path(path.partition("/")[0]).exists())

    def test_urls_are_written_in_one_way(self) -> None:
        for url, found in (
            ("s3a://bucket/lake/", "s3://bucket/lake"),
            ("S3://bucket", "s3://bucket"),
            ("gs://bucket/a/b", "gs://bucket/a/b"),
            (
                "abfss://box@account.dfs.core.windows.net/a",
                "abfss://box@account.dfs.core.windows.net/a",
            ),
        ):
            location = lake_location(url)
            assert isinstance(location, ObjectPath)
            self.assertEqual((str(location), location.root), (found, found))
        self.assertEqual(
            str(lake_location("s3://b/a") / "streams" / "notes"), "s3://b/a/streams/notes"
        )

    def test_a_file_url_is_a_folder(self) -> None:
        made = Lake.open_or_create(f"file://{self.path}", "one", False)
        self.assertEqual(made.path, self.path)

    def test_a_folder_may_be_named_like_a_url(self) -> None:
        lake = Lake.open_or_create(self.path / "s3a:" / "a:b", "one", False)
        self.assertEqual(Lake(lake.path).path, self.path / "s3a:" / "a:b")

    def test_an_empty_folder_becomes_a_lake(self) -> None:
        self.path.mkdir()
        self.assertEqual(self.begin().streams, [])

    def test_an_interrupted_creation_is_repeated(self) -> None:
        self.path.mkdir()
        (self.path / f"{MARKER}.12345").write_bytes(b'{"form')
        self.assertEqual(self.begin().marker.server, "one")

    def test_another_database_is_refused(self) -> None:
        self.begin()
        self.refused(
            LakeOfAnother, "is of database one, and this is two", call=lambda: self.begin("two")
        )

    def test_a_folder_with_other_files_is_refused(self) -> None:
        self.path.mkdir()
        (self.path / "thesis.tex").touch()
        self.refused(NotALake, "holds 'thesis.tex'", call=self.begin)
        self.assertEqual([each.name for each in self.path.iterdir()], ["thesis.tex"])

    def test_paths_that_delta_readers_misread_are_refused(self) -> None:
        above = self.path
        for name in ("a%20b", "a\\b", "a\nb", "[a", "a]", "^", "a|b"):
            self.path = above / name
            error = self.assertRaises(NotALake, self.begin)
            self.assertIn("not all that read Delta tables", str(error))
        for name in ("a (1) {x,y} *? #:", "ü 漢"):
            table = Lake.open_or_create(above / name, "one", False).ensure_table(SHAPE)
            table.append([], table.position, PositionVector({"w": 1}, 1))
            self.assertEqual(
                (table.remove_unused(retention_hours=0), table.position.linear), (0, 1)
            )

    def test_a_file_is_refused(self) -> None:
        self.path.write_text("")
        self.refused(NotALake, "it is a file", call=self.begin)
        self.refused(NotALake, "Not a directory", call=lambda: Lake(self.path))

    def test_a_missing_folder_is_refused_and_not_created(self) -> None:
        self.refused(NotALake, "No such file or directory", call=lambda: Lake(self.path))
        self.assertFalse(self.path.exists())

    def test_an_unwritable_marker_is_named(self) -> None:
        # A folder has the name of the file, because file permissions do not restrict root.
        (self.path / f"{MARKER}.{os.getpid()}").mkdir(parents=True)
        self.refused(NotALake, "cannot be written (Is a directory)", call=self.begin)

    def test_a_damaged_marker_is_refused(self) -> None:
        self.begin()
        for text, words in (
            ("", "is damaged"),
            ('{"format": 1, "server": "o', "is damaged"),
            ("[]", "is damaged"),
            ('{"format": 1, "server": "one"}', "missing required field `erodes`"),
            ('{"format": 1, "server": "one", "erodes": false, "x": 1}', "unknown field `x`"),
        ):
            (self.path / MARKER).write_text(text)
            self.refused(NotALake, MARKER, words, call=self.begin)

    def test_a_later_format_is_refused(self) -> None:
        self.begin()
        (self.path / MARKER).write_text('{"format": 2, "whatever": "there is"}')
        self.refused(OtherFormat, "has format 2", "reads 1", call=self.begin)


class StreamsOfALake(LakeCase):
    """The streams and quarantines of a lake."""

    def test_only_folders_with_a_table_are_streams(self) -> None:
        lake = self.begin()
        lake.ensure_table(SHAPE)
        lake.ensure_table(StreamSchema("a", True, ()))
        (lake.path / "streams" / "stray").mkdir()
        (lake.path / "streams" / "file").touch()
        self.assertEqual(lake.streams, ["a", "notes"])
        self.assertEqual(lake.table("notes").stream_schema, SHAPE)
        self.assertTrue(lake.table("a").stream_schema.counts_down)

    def test_an_unknown_stream_is_refused(self) -> None:
        lake = self.begin()
        self.refused(NotInTheLake, "it has none", call=lambda: lake.table("notes"))
        lake.ensure_table(SHAPE)
        for name in ("note", "..", ".", "notes/_delta_log"):
            self.refused(NotInTheLake, "it has notes", call=lambda name=name: lake.table(name))

    def test_an_interrupted_table_is_created_again(self) -> None:
        lake = self.begin()
        for folder in ("streams", "quarantine"):
            (lake.path / folder / "notes" / "_delta_log").mkdir(parents=True)
        self.assertEqual((lake.streams, lake.quarantine("notes")), ([], None))
        self.assertEqual(lake.ensure_table(SHAPE).stream_schema, SHAPE)
        self.assertEqual(lake.ensure_quarantine(SHAPE).files, [])
        self.assertEqual(lake.streams, ["notes"])

    def test_a_quarantine_is_made_when_it_is_needed(self) -> None:
        lake = self.begin()
        self.assertIsNone(lake.quarantine("notes"))
        made = lake.ensure_quarantine(SHAPE)
        names = [column.name for column in made.stream_schema.columns]
        self.assertEqual(names, ["stream_id", "row_no", "writer", "reason", "cells"])
        again = lake.quarantine("notes")
        assert again is not None
        self.assertEqual(again.path, lake.ensure_quarantine(SHAPE).path)
        self.assertEqual(lake.streams, [])


class LakeLocks(LakeCase):
    """Locks, which the operating system releases when a process dies."""

    def test_only_one_holder_has_the_write_lock(self) -> None:
        lake = self.begin()
        with lake.write_lock():
            self.refused(LakeBusy, "is changing", call=Lake(self.path).write_lock().__enter__)
            with lake.read_lock():  # many may hold it at the same time
                pass
        with Lake(self.path).write_lock():
            pass

    def test_another_process_is_refused_the_write_lock(self) -> None:
        lake = self.begin()
        script = f"""
            from pathlib import Path
            from synrepl.pipeline.lake.lake import Lake
            with Lake(Path({str(self.path)!r})).write_lock():
                print("changed")
        """
        with lake.write_lock():
            ended = run_child(script)
            self.assertIn("LakeBusy", ended.errors)
        self.assertEqual(run_child(script).output, "changed\n")

    def test_removal_waits_for_readers(self) -> None:
        lake = self.begin()
        with lake.read_lock(), Lake(self.path).read_lock(), lake.removal_lock(wait=False) as may:
            self.assertFalse(may)
        with lake.removal_lock() as may:
            self.assertTrue(may)

    def test_a_lock_file_that_cannot_be_opened_is_named(self) -> None:
        lake = self.begin()
        (self.path / LOCK).mkdir()
        self.refused(LockFailed, "Is a directory", call=lake.write_lock().__enter__)
