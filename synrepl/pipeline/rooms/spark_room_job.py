"""The declaration of a job over the tables of rooms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import types as t

from synrepl.core.errors import InputError
from synrepl.pipeline.rooms.tables import RoomFrames


class NoSuchSetting(InputError):
    """job {job!r} has no setting {setting!r}; it has {settings}"""


class BadSetting(InputError):
    """setting {setting!r} of job {job!r} cannot be {value!r}: want {wanted}"""


@dataclass(frozen=True, slots=True)
class SparkRoomJob:
    """A question to the rooms of a database.

    :ivar name: the argument of ``synrepl lake run``
    :ivar title: a title for people
    :ivar schema: names and types of the columns of the result, in order
    :ivar transform: computes the result from the tables and the settings that were given
    :ivar settings: by name, what a setting does
    """

    name: str
    title: str
    schema: t.StructType
    transform: Callable[[RoomFrames, Mapping[str, str]], DataFrame]
    settings: Mapping[str, str] = field(default_factory=dict)

    def run(self, frames: RoomFrames, settings: Mapping[str, str]) -> DataFrame:
        """The result. It can be read as long as the tables are open.

        :raises NoSuchSetting: :raises BadSetting:
        """
        for name in settings:
            if name not in self.settings:
                names = ", ".join(self.settings) or "none"
                raise NoSuchSetting(job=self.name, setting=name[:100], settings=names)
        return self.transform(frames, settings)

    def number(self, settings: Mapping[str, str], name: str, default: int) -> int:
        """A setting that is a number of at least 1.

        :raises BadSetting: it is none
        """
        value = settings.get(name)
        if value is None:
            return default
        if not (value.isascii() and value.isdigit() and int(value[:18]) > 0):
            wanted = "a number of at least 1"
            raise BadSetting(job=self.name, setting=name, value=value[:100], wanted=wanted)
        return int(value[:18])

    def flag(self, settings: Mapping[str, str], name: str) -> bool:
        """A setting that is ``yes`` or ``no``, which is the default.

        :raises BadSetting: it is neither
        """
        value = settings.get(name, "no")
        if value not in ("yes", "no"):
            raise BadSetting(job=self.name, setting=name, value=value[:100], wanted="yes or no")
        return value == "yes"
