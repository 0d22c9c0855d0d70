"""The options ``starting`` and ``ending``: where a read begins or ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import msgspec

from synrepl.core.errors import ConfigError
from synrepl.positions.vector import BadVector, PositionVector


class NamedPosition(Enum):
    """A position that is looked up when the read begins."""

    EARLIEST = "earliest"  # before the first fact that has not been trimmed
    NOW = "now"  # after the last settled fact


#: A named position, one position for every stream, or positions by stream.
PositionOption = NamedPosition | PositionVector | Mapping[str, PositionVector]


class BadPositionOption(ConfigError):
    """option {option} of the synrepl source is {value!r}; it has to be 'earliest', 'now', a position such as 10~w1.12, or a JSON object with one for each stream, such as events: 10~w1.12: {reason}"""


class PositionMissing(ConfigError):
    """option {option} of the synrepl source has no position for stream {stream!r}; it has positions for {named}"""


@dataclass(frozen=True, slots=True)
class PositionRange:
    """The positions of one stream that the names stand for, as observed."""

    earliest: PositionVector
    now: PositionVector


def parse_position(option: str, text: str) -> PositionOption:
    """Parse the value of an option.

    :param option: the option's name, for the error
    :raises BadPositionOption: it is invalid
    """
    text = text.strip()
    try:
        if text.startswith("{"):
            named = msgspec.json.decode(text, type=dict[str, str])
            return {stream: PositionVector.parse(at) for stream, at in named.items()}
        if text.lower() in {word.value for word in NamedPosition}:
            return NamedPosition(text.lower())
        return PositionVector.parse(text)
    except (BadVector, msgspec.DecodeError) as error:
        raise BadPositionOption(option=option, value=text[:200], reason=error) from None


def resolve_positions(
    option: str, place: PositionOption, ends: Mapping[str, PositionRange]
) -> dict[str, PositionVector]:
    """The position in each stream.

    :raises PositionMissing: positions were given by stream, and not for all streams
    """
    found = {}
    for stream, end in ends.items():
        if place is NamedPosition.EARLIEST:
            found[stream] = end.earliest
        elif place is NamedPosition.NOW:
            found[stream] = end.now
        elif isinstance(place, PositionVector):
            found[stream] = place
        elif isinstance(place, Mapping) and stream in place:
            found[stream] = place[stream]
        else:
            named = ", ".join(sorted(place)) if isinstance(place, Mapping) else "none"
            raise PositionMissing(option=option, stream=stream, named=named)
    return found
