"""Positions in the history of one room, as ``/messages`` and ``/context`` give them out.

A position between events in the topological ordering is not enough: events that come later may belong before
it, and sync tells of these. So a token has a *ceiling*, too: the vector of what the reader knows of. Pages
that go back from it have only events that the ceiling covers, and sync has those that it does not.

======================= ==========================================================================
text                    meaning
======================= ==========================================================================
``t17_204``             after the event with topological ordering 17 and stream ordering 204; the
                        ceiling is 204
``t17_204_310~w1.312``  the same with this ceiling; a negative one is a stream ordering of backfilled events
``v310~w1.312``         in the stream ordering: after all events that this vector covers
======================= ==========================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

from synrepl.core.errors import InputError
from synrepl.core.tokens import MAX_TOKEN
from synrepl.positions.vector import BadVector, PositionVector
from synrepl.rooms import EventOrdering


class BadRoomToken(InputError):
    """{text!r} is not a position in a room's history: {reason}"""


#: Length of the longest text that is parsed.
MAX_LENGTH = 20_000


@dataclass(frozen=True, slots=True)
class RoomToken:
    """A position in the history of a room.

    :ivar ceiling: what the reader knew of when the token was made
    :ivar position: in the topological ordering; None: the position is the ceiling, in the stream ordering
    """

    ceiling: PositionVector
    position: EventOrdering | None = None

    @classmethod
    def parse(cls, text: str) -> RoomToken:
        """Parse the output of ``str()``.

        :raises BadRoomToken: it is anything else
        """
        if len(text) > MAX_LENGTH:
            raise _bad(text, f"it has more than {MAX_LENGTH} characters")
        kind, rest = text[:1], text[1:]
        if kind == "v":
            return cls(_vector(rest, text))
        if kind != "t":
            raise _bad(text, "it must begin with t, v, s or p")
        topological, _, rest = rest.partition("_")
        stream, has_ceiling, ceiling = rest.partition("_")
        position = EventOrdering(_number(topological, text), _number(stream, text))
        if has_ceiling:
            return cls(_vector(ceiling, text), position)
        return cls(PositionVector(linear=position.stream), position)

    def __str__(self) -> str:
        if self.position is None:
            return f"v{self.ceiling}"
        topological, stream = self.position
        text = f"t{topological}_{stream}"
        if self.ceiling == PositionVector(linear=stream):
            return text
        return f"{text}_{self.ceiling}"


def lowered(vector: PositionVector, stream_id: int) -> PositionVector:
    """The part of a vector up to a stream ID, without writers that the linear position covers."""
    linear = min(vector.linear, stream_id)
    writers = {name: min(token, stream_id) for name, token in vector.writers.items()}
    return PositionVector({name: each for name, each in writers.items() if each > linear}, linear)


def _vector(text: str, whole: str) -> PositionVector:
    if text.startswith("-"):
        return PositionVector(linear=_number(text, whole))
    try:
        return PositionVector.parse(text)
    except BadVector as error:
        raise _bad(whole, str(error.facts["reason"])) from None


def _number(text: str, whole: str) -> int:
    digits = text.removeprefix("-")
    # Only ASCII digits, and few enough that a number is not made of a long text.
    if not (digits.isascii() and digits.isdigit()) or len(digits) > len(str(MAX_TOKEN)):
        raise _bad(whole, f"{text[:40]!r} is no number")
    number = int(text)
    if abs(number) > MAX_TOKEN:
        raise _bad(whole, f"{text} has more than 64 bits")
    return number


def _bad(text: str, reason: str) -> BadRoomToken:
    return BadRoomToken(text=text[:100], reason=reason)
