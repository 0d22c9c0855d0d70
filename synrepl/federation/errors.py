"""What may become of a request to another server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from synrepl.core.errors import ProtocolError, Refused, Unavailable


class DestinationAway(Unavailable):
    """{destination} did not answer {subject}: {reason}; see whether it can be reached from this machine"""


class ServerNotAllowed(DestinationAway):
    """{destination} is not asked: 'server_acl' of 'rooms.federation' does not allow it"""


class DestinationBackedOff(Unavailable):
    """{destination} has failed for {failing_s:.0f} s ({reason}); it is asked again in {retry_s:.0f} s"""


class AnswerTooLarge(ProtocolError):
    """{where} has more than {limit} bytes"""


class AddressRefused(Refused):
    """{destination} is at {address}, which is no public address; if it shall be reached, list a network with it under 'allow_private_addresses' of 'rooms.federation'"""


class BadFederationAnswer(ProtocolError):
    """the answer of {destination} to {subject} is not acceptable: {reason}"""


class RequestRefusedByServer(Refused):
    """{destination} refused {subject}: {status} {errcode}: {message}"""

    def __init__(
        self,
        *,
        destination: str,
        subject: str,
        status: int,
        errcode: str,
        message: str,
        members: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            destination=destination,
            subject=subject,
            status=status,
            errcode=errcode,
            message=message,
            members=members,
        )
        self.destination = destination
        #: The HTTP status.
        self.status = status
        #: Such as ``M_FORBIDDEN``; ``M_UNKNOWN`` where the answer had none.
        self.errcode = errcode
        self.message = message
        #: Further members of the answer, such as ``room_version`` or ``retry_after_ms``, as they were sent.
        self.members = {} if members is None else members
