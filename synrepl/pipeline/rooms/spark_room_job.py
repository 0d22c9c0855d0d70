"""The declaration of a job over the tables of rooms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import types as t

from synrepl.core.errors import InputError
from synrepl.pipeline.rooms.tables import RoomFrames
from synrepl.rooms import ROOM_VERSIONS


class NoSuchSetting(InputError):
    """job {job!r} has no setting {setting!r}; it has {settings}"""


class JobSettingRefused(InputError):
    """setting {setting!r} of job {job!r} cannot be {value!r}: want {wanted}"""


class SettingKind(StrEnum):
    """The values that a setting may have, as a phrase."""

    NUMBER = "a number of at least 1"
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
        return value in ROOM_VERSIONS


@dataclass(frozen=True, slots=True)
class SparkRoomJob:
    """A question to the rooms of a database.

    :ivar name: the argument of ``synrepl lake run``
    :ivar title: a title for people
    :ivar schema: names and types of the columns of the result, in order
    :ivar transform: computes the result from the tables and from settings that were checked
    :ivar settings: by name
    """

    name: str
    title: str
    schema: t.StructType
    transform: Callable[[RoomFrames, Mapping[str, str]], DataFrame]
    settings: Mapping[str, JobSetting] = field(default_factory=dict)

    def check(self, settings: Mapping[str, str]) -> None:
        """Check settings.

        :raises NoSuchSetting: :raises JobSettingRefused:
        """
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

    def run(self, frames: RoomFrames, settings: Mapping[str, str]) -> DataFrame:
        """The result. It can be read as long as the tables are open.

        :raises NoSuchSetting: :raises JobSettingRefused:
        """
        self.check(settings)
        return self.transform(frames, settings)
