"""Reasons for which a session ends, and the ERROR text that is sent for each."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from synrepl.wire.codec import NotUtf8
from synrepl.wire.errors import RemoteProtocolError
from synrepl.wire.lines import LineTooLong


class CloseReason(StrEnum):
    """Why a session ended; the values are metric labels."""

    PING_TIMEOUT = "ping_timeout"
    #: The peer sent no line after it connected.
    NEVER_SPOKE = "never_spoke"
    #: The listener was at its limit, or displaced an idle connection.
    TOO_MANY_CONNECTIONS = "too_many_connections"
    PROTOCOL_ERROR = "protocol_error"
    LINE_TOO_LONG = "line_too_long"
    NOT_UTF8 = "not_utf8"
    WRONG_REMOTE = "wrong_remote"
    FAILED_TO_KEEP_UP = "failed_to_keep_up"
    #: A well-formed REPLICATE that cannot be answered: no such stream, or trimmed.
    REPLICATE_REFUSED = "replicate_refused"
    #: A well-formed INVALIDATE_CACHE that cannot be carried out.
    INVALIDATION_REFUSED = "invalidation_refused"
    SHUTTING_DOWN = "shutting_down"
    PEER_CLOSED = "peer_closed"
    LOCAL = "local"


class WrongRemote(RemoteProtocolError):
    """Wrong remote: the server is {found!r}, {expected!r} was expected;
    check host, port and server_name"""


class PingTimeout(RemoteProtocolError):
    """ping timeout: nothing was heard for {seconds:g} s"""


class NeverSpoke(RemoteProtocolError):
    """nothing was said for {seconds:g} s after connecting; ask for something, with REPLICATE for example"""


class FailedToKeepUp(RemoteProtocolError):
    """Failed to keep up: {lines} lines ({size} bytes) are waiting for the peer to read them, the oldest for {seconds:.1f} s"""


# By fault: the reason, and the ERROR text where operators search for the exact words of a
# real server; other faults send their full message.
_FAULTS: Mapping[type[RemoteProtocolError], tuple[CloseReason, str | None]] = {
    PingTimeout: (CloseReason.PING_TIMEOUT, "ping timeout"),
    NeverSpoke: (CloseReason.NEVER_SPOKE, None),
    LineTooLong: (CloseReason.LINE_TOO_LONG, None),
    NotUtf8: (CloseReason.NOT_UTF8, None),
    WrongRemote: (CloseReason.WRONG_REMOTE, "Wrong remote"),
    FailedToKeepUp: (CloseReason.FAILED_TO_KEEP_UP, "Failed to keep up"),
}


def reason_and_text(fault: RemoteProtocolError) -> tuple[CloseReason, str]:
    """The close reason for a fault of the peer, and the text of the ERROR to send."""
    reason, text = _FAULTS.get(type(fault), (CloseReason.PROTOCOL_ERROR, None))
    return reason, str(fault) if text is None else text
