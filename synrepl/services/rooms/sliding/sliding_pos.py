"""Positions of connections, as clients get them: ``pos``.

``p12-345-9f3a01bc22de-s…``: the numbers of the connection and of what it was told, a tag of the rooms that were wanted, and
the sync token of the answer. While only the token moves on, nothing is stored.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from synrepl.core.errors import InputError
from synrepl.core.tokens import MAX_TOKEN
from synrepl.services.rooms.news.sync_token import (
    MAX_TOKEN_CHARS,
    BadSyncToken,
    SyncToken,
    SyncTokenOfOtherServer,
)
from synrepl.storage.clients.sliding_positions import PositionKey

#: The tag of an answer that did not have all that there was to tell.
INCOMPLETE = "0"

_MAX_CHARS = MAX_TOKEN_CHARS + 100
_POS = re.compile(r"p(\d{1,19})-(\d{1,19})-([0-9a-f]{1,12})-(s.*)", re.ASCII)


class UnknownPosition(InputError):
    """the position of this connection is not known, or no longer: {reason}; begin anew without 'pos'"""


class SlidingPos(NamedTuple):
    """A position of a connection.

    :ivar rules: see :meth:`.SlidingRequest.rules_tag`
    """

    key: PositionKey
    rules: str
    token: SyncToken

    @classmethod
    def parse(cls, text: str, server: str) -> SlidingPos:
        """Parse the output of ``str()``.

        :param server: name of the server that is asked
        :raises UnknownPosition: it is anything else
        """
        found = _POS.fullmatch(text) if len(text) <= _MAX_CHARS else None
        if found is None:
            raise UnknownPosition(reason="it is not one of this server")
        connection, position, rules, token = found.groups()
        key = PositionKey(int(connection), int(position))
        if max(key) > MAX_TOKEN:
            raise UnknownPosition(reason="it is not one of this server")
        try:
            return cls(key, rules, SyncToken.parse(token, server))
        except (BadSyncToken, SyncTokenOfOtherServer) as error:
            raise UnknownPosition(reason=error) from None

    def __str__(self) -> str:
        return f"p{self.key.connection_no}-{self.key.position_no}-{self.rules}-{self.token}"
