"""Sync tokens: how far a client has read each stream, as one word."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from synrepl.core.errors import InputError
from synrepl.positions.vector import BadVector, PositionVector
from synrepl.streams.synapse.account_data import ACCOUNT_DATA
from synrepl.streams.synapse.events import EVENTS
from synrepl.streams.synapse.presence import PRESENCE
from synrepl.streams.synapse.receipts import RECEIPTS
from synrepl.streams.synapse.to_device import TO_DEVICE
from synrepl.streams.synapse.typing import TYPING

#: The streams that a sync answer is made of, in the order of the fields of a token.
SYNC_STREAMS = (EVENTS, RECEIPTS, TYPING, ACCOUNT_DATA, PRESENCE, TO_DEVICE)

#: Maximum length of a token in characters: some 200 writers that are above the linear position.
MAX_TOKEN_CHARS = 8_192

_TAG_CHARS = 8
_TAG = re.compile(rf"s[0-9a-f]{{{_TAG_CHARS}}}")

#: Writers' names may contain ``_``, which is doubled in a field: a single one separates two fields.
_SEPARATOR = re.compile("(?<!_)_(?!_)")

_START = PositionVector()

#: Parsed tokens that are kept, and the length up to which they are: that of a token with ten writers.
_KEPT, _USUAL_CHARS = 4_096, 512


class BadSyncToken(InputError):
    """{text!r} is not a sync token: {reason}; use 'next_batch' of an answer to /sync"""


class SyncTokenOfOtherServer(InputError):
    """the sync token comes from another server than {server!r}: sync again without 'since'"""


class SyncToken(NamedTuple):
    """The positions up to which a client has been told of everything.

    Immutable, and the same in all processes of a server. ``str()`` is URL-safe.

    :ivar tag: of the server that made it; see :func:`server_tag`
    """

    tag: str
    events: PositionVector = _START
    receipts: PositionVector = _START
    typing: PositionVector = _START
    account_data: PositionVector = _START
    presence: PositionVector = _START
    to_device: PositionVector = _START

    @property
    def vectors(self) -> Mapping[str, PositionVector]:
        """The positions by the name of the stream."""
        return {stream.name: at for stream, at in zip(SYNC_STREAMS, self[1:], strict=True)}

    def __str__(self) -> str:
        """``s<tag>_<events>_<receipts>_<typing>_<account data>_<presence>_<to-device>``."""
        fields = [str(vector).replace("_", "__") for vector in self[1:]]
        return "_".join([f"s{self.tag}", *fields])

    def replace(self, vectors: Mapping[str, PositionVector]) -> SyncToken:
        """This token with other positions in some streams."""
        return self.of(self.tag, {**self.vectors, **vectors}) if vectors else self

    @classmethod
    def of(cls, tag: str, vectors: Mapping[str, PositionVector]) -> SyncToken:
        """A token of these positions; streams that are not named are at their start."""
        return cls(tag, *(vectors.get(stream.name, _START) for stream in SYNC_STREAMS))

    @classmethod
    def parse(cls, text: str, server: str) -> SyncToken:
        """Parse the output of ``str()``.

        :param server: name of the server that is asked
        :raises BadSyncToken: it is anything else
        :raises SyncTokenOfOtherServer: another server made it
        """
        if len(text) > MAX_TOKEN_CHARS:
            raise _bad(text, f"it has more than {MAX_TOKEN_CHARS:,} characters")
        return _parsed(text, server) if len(text) <= _USUAL_CHARS else cls._parse(text, server)

    @classmethod
    def _parse(cls, text: str, server: str) -> SyncToken:
        tag, *fields = _SEPARATOR.split(text)
        if not _TAG.fullmatch(tag):
            raise _bad(text, "it does not begin with 's' and the tag of a server")
        if len(fields) != len(SYNC_STREAMS):
            raise _bad(text, f"it has {len(fields)} positions instead of {len(SYNC_STREAMS)}")
        if tag[1:] != server_tag(server):
            raise SyncTokenOfOtherServer(server=server)
        try:
            vectors = [PositionVector.parse(field.replace("__", "_")) for field in fields]
        except BadVector as error:
            raise _bad(text, str(error)) from None
        return cls(tag[1:], *vectors)


@lru_cache(_KEPT)
def _parsed(text: str, server: str) -> SyncToken:
    """Tokens of many clients are the same, and take as much time and memory as one."""
    return SyncToken._parse(text, server)


@lru_cache(16)
def server_tag(server: str) -> str:
    """A short tag that tells the tokens of servers apart; it is no secret."""
    return sha256(server.encode()).hexdigest()[:_TAG_CHARS]


def _bad(text: str, reason: str) -> BadSyncToken:
    return BadSyncToken(text=text[:100], reason=reason)
