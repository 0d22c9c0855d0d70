"""What of a recording is played: to a client that has connected, or to all who listen on Redis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from synrepl.services.bus.channels import Channels
from synrepl.tools.judge.judge import Recorded
from synrepl.wire.dialects import Side

#: What a server says of its streams. SERVER, PING and ERROR belong to the
#: connection that was recorded; the one it is played on has its own.
_SERVED = (b"RDATA ", b"POSITION ", b"REMOTE_SERVER_UP ")
_TO_A_CLIENT = (*_SERVED, b"SYNC ")

#: Who is there now asks for himself.
_ASKS = b"REPLICATE"


class Cue(NamedTuple):
    """One line to be played.

    :ivar at_ms: when it was recorded, in ms since the epoch
    :ivar channel: where it is to be published; None on a connection
    """

    at_ms: int
    text: bytes
    channel: str | None = None


def to_client(recording: Iterable[Recorded], connection: int | None) -> Iterator[Cue]:
    """The server's lines (on Redis, everybody's) that a client would get over TCP.

    :param connection: which one, of a recording of several
    """
    for recorded in recording:
        if recorded.text.startswith(_TO_A_CLIENT) and _is_of(recorded, connection):
            yield Cue(recorded.at_ms, recorded.text)


def to_bus(
    recording: Iterable[Recorded], connection: int | None, then: str | None, now: str
) -> Iterator[Cue]:
    """What is published on Redis: everybody's lines, or what the server said over TCP.

    :param then: what the server was called; its channels become those of ``now``
    """
    main = Channels(now).main
    for recorded in recording:
        channel, text = recorded.channel, recorded.text
        if channel is not None:
            if text.partition(b" ")[0] != _ASKS:
                yield Cue(recorded.at_ms, text, _renamed(channel, then, now))
        elif text.startswith(_SERVED) and _is_of(recorded, connection):
            yield Cue(recorded.at_ms, text, main)


def _is_of(recorded: Recorded, connection: int | None) -> bool:
    if recorded.channel is not None:
        return True
    return recorded.sender is Side.SERVER and recorded.connection == connection


def _renamed(channel: str, then: str | None, now: str) -> str:
    name, slash, rest = channel.partition("/")
    return f"{now}{slash}{rest}" if name == then else channel
