"""An answer of a simulated server before it is encoded, so that a fault can change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from synrepl.rooms import Event


@dataclass
class PureAnswer:
    """An answer.

    :ivar body: its members but for events
    :ivar events: its members that are arrays of events, as JSON
    :ivar raw: what is sent instead of these members
    :ivar is_lost: it never arrives
    :ivar is_too_large: it has more bytes than anyone reads
    """

    status: int = 200
    body: dict[str, Any] = field(default_factory=dict)
    events: dict[str, list[bytes]] = field(default_factory=dict)
    raw: bytes | None = None
    is_lost: bool = False
    is_too_large: bool = False

    def encoded(self) -> bytes:
        """The body as it is sent."""
        if self.raw is not None:
            return self.raw
        arrays = {
            name: [orjson.Fragment(each) for each in events] for name, events in self.events.items()
        }
        return orjson.dumps(self.body | arrays)


class RefusedRequest(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, errcode: str, error: str = "", **members: object) -> None:
        super().__init__(errcode)
        self.answer = PureAnswer(status, {"errcode": errcode, "error": error or errcode, **members})


def raw(events: Sequence[Event]) -> list[bytes]:
    """Events as JSON."""
    return [each.raw for each in events]
