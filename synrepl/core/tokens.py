"""Tokens and ranges of them.

A *token* is a non-negative 64-bit number that only grows. It is used on the wire and
in positions. A *stream ID* is the number in the table. It equals the token, except in
a stream that counts down (``backfill``), where it is the token negated. Everything
above ``storage`` works with tokens, so nothing else needs to know about direction.
"""

from __future__ import annotations

from typing import NamedTuple

from synrepl.core.errors import InputError

Token = int

MAX_TOKEN = 2**63 - 1


class BadToken(InputError):
    """{value!r} is not a token: a whole number between 0 and 2^63-1 is needed"""


class Range(NamedTuple):
    """The tokens above ``after``, up to and including ``upto``: ``(after, upto]``."""

    after: Token
    upto: Token

    @property
    def empty(self) -> bool:
        """Whether the range contains no token; a reversed range is empty, too."""
        return self.upto <= self.after

    def __contains__(self, token: object) -> bool:
        return isinstance(token, int) and self.after < token <= self.upto


def parse_token(text: str) -> Token:
    """Parse a token.

    :raises BadToken: it is not a plain decimal number within range
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise BadToken(value=text[:40])
    value = int(text)
    if value > MAX_TOKEN:
        raise BadToken(value=text[:40])
    return value
