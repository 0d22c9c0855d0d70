"""What becomes of asking other servers for a membership, and the errors that users get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from synrepl.core.errors import InputError, ProtocolError, Refused, SynreplError, Unavailable
from synrepl.federation.answers import printable
from synrepl.federation.errors import (
    AddressRefused,
    AnswerTooLarge,
    BadFederationAnswer,
    DestinationAway,
    DestinationBackedOff,
    RequestRefusedByServer,
    ServerNotAllowed,
)
from synrepl.storage.rooms.partial.full_joins import JoinInterrupted, JoinUnderWay

#: What a server may be to blame for, so that the next one is asked.
SERVER_FAULTS = (InputError, ProtocolError, Refused, DestinationAway, DestinationBackedOff)

#: Errors among them that no server is to blame for.
OWN_FAULTS = (JoinUnderWay, JoinInterrupted)

#: Characters of what is said of one server.
_MAX_REASON = 200

#: The errors of servers, as users get them: their messages have addresses, which are nobody's business.
_REASONS: dict[type[SynreplError], str] = {
    ServerNotAllowed: "this server may not ask it",
    AddressRefused: "it is at an address that is not allowed",
    DestinationBackedOff: "it has not answered lately",
    DestinationAway: "it does not answer",
    AnswerTooLarge: "its answer is too large",
    BadFederationAnswer: "its answer is not acceptable",
}

_INCOMPATIBLE = "M_INCOMPATIBLE_ROOM_VERSION"

#: Refusals of servers that cannot let anybody into a restricted room; another one may.
_UNABLE = ("M_UNABLE_TO_AUTHORISE_JOIN", "M_UNABLE_TO_GRANT_JOIN")


class ReasonTooLong(InputError):
    """the reason has more than {limit} bytes"""


class NoServerToAsk(InputError):
    """no server is known that is in {room_id}; name one of them, as the parameter 'via'"""


class RoomNotAtServers(InputError):
    """the servers that were asked do not know {room_id}: {outcomes}"""


class RefusedByServers(Refused):
    """the servers that were asked do not allow this in {room_id}: {outcomes}"""


class RoomVersionNotSpoken(InputError):
    """room {room_id} has version {room_version}, which this server does not know"""


class ServersDidNotHelp(Unavailable):
    """no server could help with {room_id}: {outcomes}"""


class TooManyJoins(Unavailable):
    """{number} rooms of other servers are being joined now, {own} of them by this user; try again later"""


class JoinGoesOn(Unavailable):
    """room {room_id} is being joined ({phase}); ask again to hear what came of it"""


#: The errors that the process which asked another one for a membership gets as they are.
MEMBERSHIP_ERRORS: tuple[type[SynreplError], ...] = (
    NoServerToAsk,
    RoomNotAtServers,
    RefusedByServers,
    RoomVersionNotSpoken,
    ServersDidNotHelp,
    TooManyJoins,
    JoinUnderWay,
    JoinInterrupted,
)


class ServerOutcome(NamedTuple):
    """What came of asking a server.

    :ivar status: of its answer; 0 without one
    :ivar errcode: of a refusal
    :ivar reason: for people
    :ivar room_version: that it named in a refusal
    """

    server: str
    status: int
    errcode: str
    reason: str
    room_version: str = ""


def outcome_of(server: str, error: SynreplError) -> ServerOutcome:
    """What an error says about a server."""
    if isinstance(error, RequestRefusedByServer):
        version = error.members.get("room_version")
        return ServerOutcome(
            server,
            error.status,
            error.errcode,
            f"{error.status} {error.errcode}: {printable(error.message, _MAX_REASON)}",
            printable(version, 50) if isinstance(version, str) else "",
        )
    known = next((_REASONS[each] for each in type(error).__mro__ if each in _REASONS), None)
    return ServerOutcome(server, 0, "", known or printable(str(error), _MAX_REASON))


def failure_of(room_id: str, outcomes: Sequence[ServerOutcome]) -> SynreplError:
    """The error that a user gets when no server helped; it lists what came of asking each.

    What all servers agree on is the reason.
    """
    listed = "; ".join(f"{each.server}: {each.reason}" for each in outcomes)
    versions = {each.room_version for each in outcomes if each.errcode == _INCOMPATIBLE}
    if len(versions) == 1 and all(each.errcode == _INCOMPATIBLE for each in outcomes):
        return RoomVersionNotSpoken(room_id=room_id, room_version=versions.pop() or "unknown")
    statuses = {each.status for each in outcomes if each.status}
    if statuses == {404}:
        return RoomNotAtServers(room_id=room_id, outcomes=listed)
    # One that says no counts for more than those that do not know.
    says_no = any(each.status == 403 or each.errcode in _UNABLE for each in outcomes)
    if says_no and statuses <= {400, 403, 404}:
        return RefusedByServers(room_id=room_id, outcomes=listed)
    return ServersDidNotHelp(room_id=room_id, outcomes=listed)
