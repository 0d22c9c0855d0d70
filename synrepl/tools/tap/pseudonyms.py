"""Replaces names in recorded lines by pseudonyms, so that a recording can be shared.

A name has the same pseudonym throughout a recording. It has another one in the next recording,
because the key is random and is not stored. Users, rooms, aliases, groups, events and servers
are hidden everywhere, and so are all strings in USER_IP. Other text, such as status messages and
the names of devices and pushers, is kept.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
from collections.abc import Mapping
from functools import lru_cache

_SERVER = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9.-]*)(?::\d{1,5})?"

#: A Matrix ID in some text; opaque ones have no server.
#: https://spec.matrix.org/v1.11/appendices/#common-identifier-format
_ID = re.compile(
    rf'([@!#$+])([^\s:"\\]*):({_SERVER})|([!$])([A-Za-z0-9_+/-]{{43}})(?![A-Za-z0-9_+/-])'
)
_KINDS: Mapping[str, str] = {"@": "u", "!": "r", "#": "a", "$": "e", "+": "g"}

_BARE = re.compile(_SERVER)
#: Text that is a server name in any context; other names are known once an ID has contained them.
_SURELY_SERVER = re.compile(r"\[.*\](:\d+)?|.*:\d{1,5}|\d{1,3}(\.\d{1,3}){3}|localhost")

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_BEGINS_JSON = ("[", "{", '"')

_SERVER_COMMANDS = frozenset({"SERVER", "REMOTE_SERVER_UP"})
#: Streams whose rows begin with a server, a user, or null.
_SERVER_FIRST = frozenset({"device_lists", "presence_federation", "quarantined_media"})
#: The state key of such events is a server.
_KEYED_BY_SERVER = "m.room.aliases"

_DIGITS = 16  # of 4 bits; with a million names two collide once in 40 million recordings
_MOST_SERVERS = 100_000


class Pseudonyms:
    """Replaces names in lines of the protocol.

    Remembers a limited number of servers, to recognise their names outside of IDs.

    :param key: only for tests; the pseudonyms are safe only with a random key
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = secrets.token_bytes(32) if key is None else key
        self._servers: set[str] = set()
        self._digest = lru_cache(maxsize=100_000)(self._compute)

    def line(self, line: bytes) -> bytes:
        """A line of the protocol with its names replaced; everything else, even spaces, is kept."""
        text = line.decode("utf-8", "surrogateescape")
        verb, *words = text.split(" ")
        if verb in _SERVER_COMMANDS:
            words = [self.server(" ".join(words))] if words else words
        else:
            count = _before_json(words)
            row = " ".join(words[count:])
            words = [self._text(word) for word in words[:count]]
            if row:
                words.append(self._row(verb, words[0] if words else "", row))
        return " ".join([verb, *words]).encode("utf-8", "surrogateescape")

    def server(self, name: str) -> str:
        """The pseudonym of a server, in a domain that never exists on the Internet."""
        if len(self._servers) < _MOST_SERVERS:
            self._servers.add(name)
        return f"s{self._digest('server', name)}.invalid"

    def _row(self, verb: str, stream: str, row: str) -> str:
        """JSON with the names in its strings replaced; ``stream`` is the line's first word."""
        of_caches = verb == "RDATA" and stream == "caches"
        server_first = verb == "RDATA" and stream in _SERVER_FIRST
        before = ""

        def string(found: re.Match[str]) -> str:
            nonlocal before
            text = _unquoted(found.group())
            follows, before = before, text
            if verb == "USER_IP":
                return _quoted(f"x{self._digest('text', text)}")
            first = found.start() == 1  # only the row's bracket precedes it
            if of_caches and first:
                return _quoted(text)  # the cache's name; its keys may be servers
            of_server = (server_first and first) or follows == _KEYED_BY_SERVER
            of_server |= of_caches and "." in text and not text.startswith("m.")
            if of_server and _BARE.fullmatch(text):
                return _quoted(self.server(text))
            return _quoted(self._text(text))

        if _is_json(row):
            return _STRING.sub(string, row)
        return _quoted(self._digest("text", row)) if verb == "USER_IP" else self._text(row)

    def _text(self, text: str) -> str:
        return _BARE.sub(self._bare, _ID.sub(self._id, text))

    def _id(self, found: re.Match[str]) -> str:
        sigil, local, server, opaque = found.group(1, 2, 3, 4)
        if opaque:
            return f"{opaque}{_KINDS[opaque]}{self._digest(opaque, found.group())}"
        name = self._digest(sigil, f"{local}:{server}")
        return f"{sigil}{_KINDS[sigil]}{name}:{self.server(server)}"

    def _bare(self, found: re.Match[str]) -> str:
        name = found.group()
        if name in self._servers or _SURELY_SERVER.fullmatch(name):
            return self.server(name)
        return name

    def _compute(self, kind: str, name: str) -> str:
        message = f"{kind} {name}".encode("utf-8", "surrogatepass")
        return hmac.digest(self._key, message, "sha256").hex()[:_DIGITS]


def _before_json(words: list[str]) -> int:
    """The number of words before a row."""
    for index, word in enumerate(words):
        if word.startswith(_BEGINS_JSON):
            return index
    return len(words)


def _is_json(row: str) -> bool:
    try:
        json.loads(row)
    except (ValueError, RecursionError):
        return False
    return True


def _unquoted(literal: str) -> str:
    return str(json.loads(literal))


def _quoted(text: str) -> str:
    return json.dumps(text)
