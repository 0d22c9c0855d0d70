"""Filters that clients stored, to name them in later requests.

Source: https://spec.matrix.org/v1.16/client-server-api/#filtering
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cachetools import LRUCache

from synrepl.core import jsons
from synrepl.core.errors import InputError
from synrepl.services.rooms.timelines.client_filter import (
    KEPT_BYTES,
    ClientFilter,
    parse_filter,
    parse_filter_text,
)
from synrepl.storage.clients.filters import add_filter, read_filter
from synrepl.storage.database import Database, Transaction

#: Maximum size of a stored filter, in bytes.
MAX_FILTER_BYTES = 65_536


class UnknownFilter(InputError):
    """there is no filter {filter_id!r} of this user"""


class FilterTooLarge(InputError):
    """the filter has {size} bytes as JSON, and a stored one may have {most}"""


#: Filters that are remembered, so that a sync with one makes no query; only those of :data:`.KEPT_BYTES`.
MAX_REMEMBERED = 10_000


class StoredFilters:
    """Keeps filters of users. A filter never changes, and one that is added again keeps its ID."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._remembered: LRUCache[tuple[str, str], ClientFilter] = LRUCache(MAX_REMEMBERED)

    async def add(self, user_id: str, given: Mapping[str, Any]) -> str:
        """Store a filter; its ID.

        :raises BadFilter: it is not as the specification has it
        :raises FilterTooLarge: :raises TooManyFilters:
        """
        parse_filter(given)
        text = jsons.encode(given)
        if len(text) > MAX_FILTER_BYTES:
            raise FilterTooLarge(size=len(text), most=MAX_FILTER_BYTES)

        def work(txn: Transaction) -> int:
            return add_filter(txn, user_id, text)

        return str(await self._database.run("store a filter", work))

    async def wanted(self, user_id: str, filter_id: str) -> ClientFilter:
        """A stored filter.

        :raises UnknownFilter: there is none with this ID
        """
        remembered = self._remembered.get((user_id, filter_id))
        if remembered is None:
            text = await self._read(user_id, filter_id)
            remembered = parse_filter_text(text)
            if len(text) <= KEPT_BYTES:
                self._remembered[user_id, filter_id] = remembered
        return remembered

    async def get(self, user_id: str, filter_id: str) -> Mapping[str, Any]:
        """A stored filter, as JSON.

        :raises UnknownFilter: there is none with this ID
        """
        text = await self._read(user_id, filter_id)
        found: Mapping[str, Any] = jsons.decode(text, "the stored filter")
        return found

    async def _read(self, user_id: str, filter_id: str) -> bytes:
        number = int(filter_id) if filter_id.isascii() and filter_id.isdigit() else 0
        stored: bytes | None = None
        if 0 < number < 1 << 31:

            def work(txn: Transaction) -> bytes | None:
                return read_filter(txn, user_id, number)

            stored = await self._database.run("read a filter", work, read_only=True)
        if stored is None:
            raise UnknownFilter(filter_id=filter_id[:100])
        return stored
