"""How to replay a recording: server name, dialect, connection and speed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from synrepl.core.errors import InputError
from synrepl.tools.tap.recording import read_recording
from synrepl.tools.tap.recording_info import EXAMINED_LINES, RecordingDialectUnknown, recording_info
from synrepl.wire.dialects import CURRENT, MODERN, Dialect


class NoServerName(InputError):
    """{path} has no SERVER line; say with --server-name what to be called"""


class NotForRedis(InputError):
    """{path} is in the {dialect} dialect, which nobody speaks on Redis: rows name no writer there, or positions do not say what came before; replay it over TCP"""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Parameters of a replay.

    :ivar server_name: the server name to use
    :ivar dialect: the dialect of the recording
    :ivar connection: the connection to replay, in a recording of several
    :ivar speed: factor of the recorded speed; 0 for no delays
    :ivar recorded_server_name: the name of the server in the recording; None where it has none
    """

    path: Path
    server_name: str
    dialect: Dialect
    connection: int | None
    speed: float
    recorded_server_name: str | None = None

    @property
    def over_tcp(self) -> Dialect:
        """The dialect for TCP clients; recordings of Redis are replayed in the modern dialect."""
        return MODERN if self.dialect is CURRENT else self.dialect

    def check_for_redis(self) -> None:
        """Check that the recording can be replayed on Redis.

        :raises NotForRedis: its dialect is not used there
        """
        if self.dialect not in (MODERN, CURRENT):
            raise NotForRedis(path=self.path, dialect=self.dialect.name)


def plan_replay(
    path: Path,
    speed: float,
    connection: int | None,
    server_name: str | None,
    dialect: Dialect | None,
) -> ReplayPlan:
    """Plan a replay; arguments that are None are detected from the recording.

    :raises NoServerName: :raises RecordingDialectUnknown: it cannot be detected from the recording
    :raises NoRecording: :raises NotARecording: :raises ScriptedRecording:
    """
    found = recording_info(read_recording(path))
    used_dialect = dialect or found.dialect
    if used_dialect is None:
        raise RecordingDialectUnknown(path=path, lines=EXAMINED_LINES)
    name = server_name or found.server_name
    if name is None:
        raise NoServerName(path=path)
    used_connection = found.connection if connection is None else connection
    return ReplayPlan(path, name, used_dialect, used_connection, speed, found.server_name)
