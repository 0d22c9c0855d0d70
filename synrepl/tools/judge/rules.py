"""The rules that recorded traffic is judged by, as one table, and what breaks them.

Sources: ``docs/protocol.md``; for the known faults of real servers their own
recordings, in which each of them was found.
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


class Severity(StrEnum):
    """How bad it is that a rule is broken."""

    BREACH = "breach"
    #: Real servers do it, and whoever talks to them has to put up with it.
    KNOWN = "known"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    :ivar name: how it is called in reports
    :ivar sentence: what has to hold, or, of a known fault, what real servers do
    :ivar dialects: names of the dialects it is a rule of
    """

    name: str
    sentence: str
    dialects: tuple[str, ...] = _ALL
    severity: Severity = Severity.BREACH


class Finding(NamedTuple):
    """A rule that was broken.

    :ivar line: number of the line in the recording, from 1
    :ivar detail: what there was, in a few words
    """

    rule: Rule
    line: int
    detail: str


def _known(name: str, sentence: str, dialects: tuple[str, ...] = _ALL) -> Rule:
    return Rule(name, sentence, dialects, Severity.KNOWN)


# What a line is

FORMAT = Rule("format", "Every line is a command of its dialect, with the arguments it has there.")
DIRECTION = Rule("direction", "Each side says only what is for it to say.", _TCP)
LENGTH = Rule("length", "A line has at most 16,384 bytes without its newline.", _TCP)
ROW = Rule("row", "A row is one JSON value.")
CHANNEL = Rule(
    "channel",
    "USER_IP is published on '<server>/USER_IP', all else on '<server>'; among processes of synrepl"
    " a stream may have a channel of its own.",
    ("current",),
)

# A connection

GREETING = Rule("greeting", "A server begins with SERVER, once, and PING.", _TCP)
LAST_WORD = Rule("last-word", "Whoever sends ERROR sends nothing after it.", _TCP)
ECHO = Rule(
    "echo",
    "REMOTE_SERVER_UP never goes back to who sent it; nobody says again what all of Redis has heard"
    " (USER_SYNC, USER_IP, NEW_ACTIVE_TASK).",
)
ANSWER = Rule(
    "answer",
    "REPLICATE is answered by POSITION, or refused, within 30 s; on Redis by every writer that is"
    " there.",
)
UNASKED = Rule("unasked", "A client gets only the streams that it asked for.", ("legacy",))
SILENCE = Rule("silence", "Who has sent a PING says something at least every 15 s.", _TCP)

# A writer of a stream

ORDER = Rule("order", "The tokens of a writer's rows go up.")
BATCH = Rule(
    "batch", "Rows with 'batch' for a token are followed by one that has it, before a POSITION."
)
CATCH_UP = Rule(
    "catch-up",
    "The answer to REPLICATE has only rows above the token asked for, none above its POSITION.",
    ("legacy",),
)
CATCH_UP_BATCH = Rule(
    "catch-up-batch", "Rows that are caught up with never use 'batch'.", ("legacy",)
)
CHAIN = Rule("chain", "The 'prev' of a POSITION is the token sent last.", _CHAINED)
REVERSED = Rule("reversed", "The 'new' of a POSITION is not below its 'prev'.", _CHAINED)
BACKWARDS = Rule(
    "backwards", "A POSITION is not below what was sent before, except of a stream in memory."
)

# What real servers do

UNORDERED = _known(
    "unordered",
    "Tokens of a real server are not strictly increasing on the wire: backfill rows come newest"
    " first, caches rows are sent again or late, as are some of presence and federation.",
)
CATCH_UP_ORDER = _known(
    "catch-up-order",
    "A real legacy server answers REPLICATE in the order of its tables (device_lists,"
    " account_data, user_signature): the tokens of the answer go up and down.",
    ("legacy",),
)
SHARED_SEQUENCE = _known(
    "shared-sequence",
    "A stream that shares its sequence with another one (user_signature with device_lists) moves"
    " without saying so, and tells it with 'prev' equal to 'new' when it is asked again.",
    _CHAINED,
)
RESUMED = _known(
    "resumed",
    "On Redis, where lines can be lost, a writer that comes back says where it is by a POSITION"
    " with 'prev' equal to 'new': what lies before was not said, and followers fetch it.",
    ("current",),
)
TOLD_AHEAD = _known(
    "told-ahead",
    "A real server answers any client's REPLICATE with its position in the database, which may be"
    " ahead of rows that it sends only afterwards. A POSITION whose 'prev' and 'new' are both ahead"
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
    "Real legacy servers refuse a catch-up of 10,000 rows or more, and can never get past a row"
    " that does not fit a line.",
    ("legacy",),
)
NO_GOODBYE = _known(
    "no-goodbye",
    "On shutdown 'ERROR server shutting down' is due to every connection; a real server reaches"
    " only every second one.",
    _TCP,
)
GIVEN_UP = _known(
    "given-up",
    "A side that had nothing to say, or could not, was given up with 'ERROR ping timeout': real"
    " servers wait 25 to 30 s for it.",
    _TCP,
)

#: By name, in the order in which reports list them.
RULES: Mapping[str, Rule] = MappingProxyType(
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
            TOLD_AHEAD,
            TO_ALL,
            FALLEN_BEHIND,
            NO_GOODBYE,
            GIVEN_UP,
        )
    }
)
