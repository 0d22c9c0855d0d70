"""The declaration of a job over the tables of rooms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from synrepl.core.errors import InputError
from synrepl.pipeline.rooms.page.document import ResultPage
from synrepl.pipeline.rooms.page.result import first_rows
from synrepl.pipeline.rooms.tables import RoomFrames
from synrepl.rooms import ROOM_VERSIONS


class NoSuchSetting(InputError):
    """job {job!r} has no setting {setting!r}; it has {settings}"""


class JobSettingRefused(InputError):
    """setting {setting!r} of job {job!r} cannot be {value!r}: want {wanted}"""


class SecondDatabase(InputError):
    """job {job!r} {needs} second database (--other-database-path)"""


class SettingKind(StrEnum):
    """The values that a setting may have, as a phrase."""

    NUMBER = "a number of at least 1"
    NAMES = "names with commas between them"
    FLAG = "yes or no"
    ROOM_VERSION = "a room version"


class JobSetting(NamedTuple):
    """A setting of a job.

    :ivar text: what it does
    """

    kind: SettingKind
    text: str

    def accepts(self, value: str) -> bool:
        """Whether it may have this value."""
        if self.kind is SettingKind.NUMBER:
            return value.isascii() and value.isdigit() and len(value) < 19 and int(value) > 0
        if self.kind is SettingKind.FLAG:
            return value in ("yes", "no")
        if self.kind is SettingKind.NAMES:
            return all(value.split(","))
        return value in ROOM_VERSIONS


@dataclass(frozen=True, slots=True)
class SparkRoomJob:
    """A question to the rooms of a database.

    :ivar name: the argument of ``synrepl lake run``
    :ivar title: a title for people
    :ivar schema: names and types of the columns of the result, in order
    :ivar transform: computes the result from the tables and from settings that were checked
    :ivar settings: by name
    :ivar page: makes a page of the result, which it may compute several times; None: a page with its first
        rows
    :ivar nothing: what a result without rows says
    :ivar compares: it takes the tables of a second database, as the third argument of ``transform``
    """

    name: str
    title: str
    schema: t.StructType
    transform: Callable[..., DataFrame]
    settings: Mapping[str, JobSetting] = field(default_factory=dict)
    page: Callable[[DataFrame], ResultPage] | None = None
    nothing: str = "No rows."
    compares: bool = False

    def check(self, settings: Mapping[str, str], *, has_second: bool = False) -> None:
        """Check settings, and whether there is a second database for a job that compares.

        :raises NoSuchSetting: :raises JobSettingRefused: :raises SecondDatabase:
        """
        if self.compares != has_second:
            raise SecondDatabase(job=self.name, needs="needs a" if self.compares else "takes no")
        for name, value in settings.items():
            setting = self.settings.get(name)
            if setting is None:
                names = ", ".join(self.settings) or "none"
                raise NoSuchSetting(job=self.name, setting=name[:100], settings=names)
            if not setting.accepts(value):
                wanted = setting.kind.value
                raise JobSettingRefused(
                    job=self.name, setting=name, value=value[:100], wanted=wanted
                )

    def run(
        self, frames: RoomFrames, settings: Mapping[str, str], there: RoomFrames | None = None
    ) -> DataFrame:
        """The result. It can be read as long as the tables are open.

        :param there: the tables of the second database of a job that compares
        :raises NoSuchSetting: :raises JobSettingRefused: :raises SecondDatabase:
        """
        self.check(settings, has_second=there is not None)
        return self.transform(frames, settings, *(() if there is None else (there,)))

    def write_page(self, answer: DataFrame, path: Path) -> DataFrame:
        """Write a page of a result, which is computed once and kept; the kept result.

        :raises PageNotWritten:
        """
        kept = answer.persist(StorageLevel.DISK_ONLY)
        made = datetime.now(UTC)
        page = first_rows(self.title, kept) if self.page is None else self.page(kept)
        page.write(path, made)
        return kept
