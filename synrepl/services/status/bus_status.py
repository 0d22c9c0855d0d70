"""Health of a process's bus connection, as reported by /status and /ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from synrepl.core.errors import Unavailable
from synrepl.services.status.readiness import Check


@dataclass(frozen=True, slots=True)
class BusStatus:
    """The state of a process's bus connection.

    :ivar where: the Redis server, for a person; contains no password
    :ivar connected: whether messages can be received and sent
    :ivar fault: why they cannot; None while they can
    :ivar name_taken: whether another process had this one's name when it was last claimed
    :ivar connections: how many times a connection was made
    :ivar echoes: number of received messages that were this process's own
    :ivar bad: number of malformed messages received
    :ivar commands: number of commands received from other processes, by verb
    :ivar cut_off: how many times the connections ended because this process, or Redis, did not read
    """

    where: str
    connected: bool
    fault: str | None
    name_taken: bool
    connections: int
    echoes: int
    bad: int
    commands: Mapping[str, int]
    cut_off: int = 0

    def to_json(self) -> dict[str, Any]:
        """All fields, by their names."""
        return asdict(self)


class NameTaken(Unavailable):
    """another process has this one's name on the bus at {where}, and nobody would hear of what is appended here; append there, or give one an instance_name of its own"""


def check_instance_name(status: Callable[[], BusStatus]) -> None:
    """Check that no other process on the bus has this one's name.

    :raises NameTaken:
    """
    bus = status()
    if bus.name_taken:
        raise NameTaken(where=bus.where)


def bus_connected(status: Callable[[], BusStatus]) -> Check:
    """A check that the bus is connected."""

    def check() -> str | None:
        bus = status()
        if bus.connected:
            return None
        why = bus.fault or "the connection is being made"
        if bus.name_taken:
            why = "another process there has this one's name; give one an instance_name of its own"
        return f"no bus on Redis at {bus.where}: {why}"

    return check
