"""How it is with the bus of a process: what is told of it, and whether it is fit for work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from synrepl.core.errors import Unavailable
from synrepl.services.status.readiness import Check


@dataclass(frozen=True, slots=True)
class BusStatus:
    """A process's place on the bus, at one moment.

    :ivar where: the server, for a person; it has no password in it
    :ivar fault: why it cannot be heard and spoken to; None while it can
    :ivar name_taken: another process had this one's name when it was last asked
    :ivar connections: how often it has been connected to
    :ivar echoes: messages heard that were this process's own
    :ivar bad: messages heard that were no lines
    :ivar commands: what was heard of others, by verb
    :ivar cut_off: how often the connections ended because this process, or Redis, did not read
    """

    where: str
    standing: bool
    fault: str | None
    name_taken: bool
    connections: int
    echoes: int
    bad: int
    commands: Mapping[str, int]
    cut_off: int = 0

    def to_json(self) -> dict[str, Any]:
        """All of it, by the names above."""
        return asdict(self)


class NameTaken(Unavailable):
    """another process has this one's name on the bus at {where}, and nobody would hear of what is appended here; append there, or give one an instance_name of its own"""


def check_instance_name(look: Callable[[], BusStatus]) -> None:
    """See whether others may hear this process as the one that it is.

    :raises NameTaken:
    """
    bus = look()
    if bus.name_taken:
        raise NameTaken(where=bus.where)


def bus_connected(look: Callable[[], BusStatus]) -> Check:
    """The bus can be heard and spoken to."""

    def check() -> str | None:
        bus = look()
        if bus.standing:
            return None
        why = bus.fault or "the connection is being made"
        if bus.name_taken:
            why = "another process there has this one's name; give one an instance_name of its own"
        return f"no bus on Redis at {bus.where}: {why}"

    return check
