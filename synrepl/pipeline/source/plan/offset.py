"""Offsets of streaming queries: a position vector per stream, stored as JSON in Spark's checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from synrepl.core.errors import InputError, Refused
from synrepl.positions.vector import BadVector, PositionVector

#: Incremented when a later release can no longer read what this one writes.
VERSION = 1


class BadOffset(InputError):
    """this is no position of a synrepl source: {reason}; start again with a new checkpointLocation"""


class OtherServer(Refused):
    """the checkpoint was made with database {then}, and this is {now}: positions of one say nothing about the other; use the database of the checkpoint, or a new checkpointLocation and a new place for the output"""


class OtherVersion(Refused):
    """the checkpoint was made by another release of synrepl (its offsets are version {then}, this release reads version {now}); go on with that release, or start with a new checkpointLocation"""


@dataclass(frozen=True, slots=True)
class Offset:
    """Positions in some streams of one database.

    :ivar server: identifies the database, see :attr:`.SourceDatabase.server`
    :ivar incarnation: of the database's server, see :attr:`.SourceDatabase.incarnation`
    """

    server: str
    streams: Mapping[str, PositionVector]
    incarnation: int = 1

    def to_json(self) -> dict[str, Any]:
        """``{"version": 1, "server": "…", "streams": {"events": {"linear": 10, "writers": {…}}}}``.

        After the first failover, it also has ``"incarnation": 2``.
        """
        failovers = {"incarnation": self.incarnation} if self.incarnation > 1 else {}
        return {
            "version": VERSION,
            "server": self.server,
            "streams": {name: at.to_json() for name, at in sorted(self.streams.items())},
            **failovers,
        }

    @classmethod
    def from_json(cls, value: object, server: str) -> Offset:
        """Parse the result of :meth:`to_json`.

        :param server: the database that the positions have to belong to
        :raises BadOffset: :raises OtherServer: :raises OtherVersion:
        """
        if not isinstance(value, dict) or not isinstance(value.get("streams"), dict):
            raise BadOffset(reason="an object with 'version', 'server' and 'streams' is needed")
        if value.get("version") != VERSION:
            raise OtherVersion(then=str(value.get("version"))[:20], now=VERSION)
        if value.get("server") != server:
            raise OtherServer(then=str(value.get("server"))[:200], now=server)
        try:
            streams = {name: PositionVector.from_json(at) for name, at in value["streams"].items()}
        except BadVector as error:
            raise BadOffset(reason=str(error)) from None
        incarnation = value.get("incarnation", 1)
        if type(incarnation) is not int or incarnation < 1:
            raise BadOffset(reason="'incarnation' is a number, 1 or more")
        return cls(server, streams, incarnation)
