"""What servers of a simulation of joins may answer that is wrong, by endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.federation.faults import FaultKind

_AWAY = (FaultKind.NO_ANSWER, FaultKind.FORBIDDEN, FaultKind.NOT_FOUND, FaultKind.BROKEN)
_BROKEN = (FaultKind.TRUNCATED, FaultKind.GARBAGE, FaultKind.NO_OBJECT, FaultKind.NESTED)
_OTHERS = (FaultKind.TOO_LARGE, FaultKind.OTHER_ROOM, FaultKind.NO_CREATE, FaultKind.EMPTY)
_FORGED = (FaultKind.UNSIGNED, FaultKind.WRONGLY_SIGNED)

#: Lies that show, by endpoint. A list without some members, and a redacted event, are believed: nothing shows that they
#: are wrong.
LIES: Mapping[str, Sequence[FaultKind]] = {
    "make_join": (*_AWAY, *_BROKEN, FaultKind.MANY_PARENTS),
    "send_join": (
        *(*_AWAY, *_BROKEN, *_OTHERS, *_FORGED, FaultKind.NO_POWER_LEVELS),
        *(FaultKind.NO_JOIN_RULES, FaultKind.NO_AUTH_CHAIN, FaultKind.NO_SERVERS),
    ),
    "state_ids": (*_AWAY, *_BROKEN, *_OTHERS, FaultKind.UNKNOWN_EVENTS, FaultKind.CONTRADICTORY),
    "state": (*_AWAY, *_BROKEN, *_OTHERS, *_FORGED, FaultKind.HALF_THE_EVENTS),
    "event": (*_AWAY, *_BROKEN, *_FORGED),
    "event_auth": (*_AWAY, *_BROKEN, *_FORGED, FaultKind.EMPTY),
    "get_missing_events": (
        *(*_AWAY, *_BROKEN, *_FORGED, FaultKind.EMPTY),
        FaultKind.HALF_THE_EVENTS,
    ),
    "send": (FaultKind.NO_ANSWER, FaultKind.BROKEN, FaultKind.GARBAGE),
}
