"""The rules for recorded traffic, as one table, and the findings against them.

Source: ``docs/protocol.md``. Every known fault of real servers was found in their recordings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

_ALL = ("legacy", "transitional", "modern", "current")
_TCP = ("legacy", "transitional", "modern")
_CHAINED = ("modern", "current")


class RuleSeverity(StrEnum):
    """How serious a broken rule is."""

    BREACH = "breach"
    #: A fault of real servers that their peers have to tolerate.
    KNOWN = "known"


@dataclass(frozen=True, slots=True)
class ProtocolRule:
    """One rule.

    :ivar name: its name in reports
    :ivar sentence: the requirement or, for a known fault, what real servers do
    :ivar dialects: names of the dialects to which it applies
    """

    name: str
    sentence: str
    dialects: tuple[str, ...] = _ALL
    severity: RuleSeverity = RuleSeverity.BREACH


class RuleFinding(NamedTuple):
    """A broken rule.

    :ivar line: number of the line in the recording, from 1
    :ivar detail: what was found, in a few words
    """

    rule: ProtocolRule
    line: int
    detail: str


def _known(name: str, sentence: str, dialects: tuple[str, ...] = _ALL) -> ProtocolRule:
    return ProtocolRule(name, sentence, dialects, RuleSeverity.KNOWN)


# Lines

FORMAT = ProtocolRule(
    "format", "Every line is a command of its dialect, with the arguments it has there."
)
DIRECTION = ProtocolRule(
    "direction", "Each side sends only the commands that its side may send.", _TCP
)
LENGTH = ProtocolRule("length", "A line has at most 16,384 bytes without its newline.", _TCP)
ROW = ProtocolRule("row", "A row is one JSON value.")
CHANNEL = ProtocolRule(
    "channel",
    "USER_IP is published on '<server>/USER_IP', everything else on '<server>'; among processes"
    " of synrepl a stream may have its own channel.",
    ("current",),
)

# Connections

GREETING = ProtocolRule("greeting", "A server begins with one SERVER, and PING.", _TCP)
LAST_WORD = ProtocolRule("last-word", "The side that sends ERROR sends nothing after it.", _TCP)
ECHO = ProtocolRule(
    "echo",
    "REMOTE_SERVER_UP never goes back to its sender; no process repeats what was published to all on"
    " Redis (USER_SYNC, USER_IP, NEW_ACTIVE_TASK).",
)
ANSWER = ProtocolRule(
    "answer",
    "REPLICATE is answered by POSITION, or refused, within 30 s; on Redis by every writer that"
    " is connected.",
)
UNASKED = ProtocolRule("unasked", "A client gets only the streams that it asked for.", ("legacy",))
SILENCE = ProtocolRule(
    "silence", "A side that has sent a PING sends something at least every 15 s.", _TCP
)

# Writers of a stream

ORDER = ProtocolRule("order", "The tokens of a writer's rows increase.")
BATCH = ProtocolRule(
    "batch",
    "Rows with 'batch' for a token are followed by the row with the token, before a POSITION.",
)
CATCH_UP = ProtocolRule(
    "catch-up",
    "The answer to REPLICATE has only rows above the requested token, none above its POSITION.",
    ("legacy",),
)
CATCH_UP_BATCH = ProtocolRule(
    "catch-up-batch", "Rows of a catch-up never use 'batch'.", ("legacy",)
)
CHAIN = ProtocolRule("chain", "The 'prev' of a POSITION is the token sent last.", _CHAINED)
REVERSED = ProtocolRule("reversed", "The 'new' of a POSITION is not below its 'prev'.", _CHAINED)
BACKWARDS = ProtocolRule(
    "backwards", "A POSITION is not below what was sent before, except for an in-memory stream."
)

# Known faults of real servers

UNORDERED = _known(
    "unordered",
    "Tokens of a real server are not strictly increasing on the wire: backfill rows come newest"
    " first; rows of caches, and some of presence and federation, are repeated or late.",
)
CATCH_UP_ORDER = _known(
    "catch-up-order",
    "A real legacy server answers REPLICATE in the order of its tables (device_lists,"
    " account_data, user_signature): the tokens of the answer are not in order.",
    ("legacy",),
)
SHARED_SEQUENCE = _known(
    "shared-sequence",
    "A stream that shares its sequence with another one (user_signature with device_lists) advances"
    " without announcing it, and answers the next REPLICATE with 'prev' equal to 'new'.",
    _CHAINED,
)
RESUMED = _known(
    "resumed",
    "On Redis, where lines can be lost, a writer that reconnects announces a POSITION with 'prev'"
    " equal to 'new': rows before it were not published, and followers fetch them.",
    ("current",),
)
ANNOUNCED_AHEAD = _known(
    "announced-ahead",
    "A real server answers any client's REPLICATE with its position in the database, which may be"
    " ahead of rows that it sends later. A POSITION whose 'prev' and 'new' are both ahead"
    " also announces a row that is too long for a line.",
)
TO_ALL = _known(
    "to-all",
    "A real modern master sends every RDATA to every connection, even one that never sent"
    " REPLICATE, and answers one client's REPLICATE with POSITIONs to all connections.",
    ("transitional", "modern"),
)
FALLEN_BEHIND = _known(
    "fallen-behind",
    "Real legacy servers refuse a catch-up of 10,000 rows or more, and can never skip a row"
    " that does not fit a line.",
    ("legacy",),
)
NO_GOODBYE = _known(
    "no-goodbye",
    "On shutdown every connection should get 'ERROR server shutting down'; a real server sends it"
    " to every second one only.",
    _TCP,
)
GIVEN_UP = _known(
    "given-up",
    "A side that was silent was disconnected with 'ERROR ping timeout': real servers wait 25 to"
    " 30 s for it.",
    _TCP,
)

#: By name, in the order in which reports list them.
RULES: Mapping[str, ProtocolRule] = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            FORMAT,
            DIRECTION,
            LENGTH,
            ROW,
            CHANNEL,
            GREETING,
            LAST_WORD,
            ECHO,
            ANSWER,
            UNASKED,
            SILENCE,
            ORDER,
            BATCH,
            CATCH_UP,
            CATCH_UP_BATCH,
            CHAIN,
            REVERSED,
            BACKWARDS,
            UNORDERED,
            CATCH_UP_ORDER,
            SHARED_SEQUENCE,
            RESUMED,
            ANNOUNCED_AHEAD,
            TO_ALL,
            FALLEN_BEHIND,
            NO_GOODBYE,
            GIVEN_UP,
        )
    }
)
