"""The users that each user ignores, cached.

Source: https://spec.matrix.org/v1.16/client-server-api/#ignoring-users
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from synrepl.caches.registry import Caches
from synrepl.core import jsons
from synrepl.storage.clients.account_data import read_account_data
from synrepl.storage.database import Database, Transaction
from synrepl.streams.synapse.account_data import IGNORED_USER_LIST

#: Users whose lists are remembered, the memory that they may take in bytes, and users that one ignores.
MAX_USERS, MAX_BYTES, MAX_IGNORED = 50_000, 100 * 2**20, 10_000

_USER_BYTES, _SET_BYTES = 150, 300

#: Reads whom a user ignores.
IgnoredBy = Callable[[str], Awaitable[frozenset[str]]]

_NOBODY: frozenset[str] = frozenset()


async def nobody(user_id: str) -> frozenset[str]:
    """Nobody is ignored, where no account data is served."""
    return _NOBODY


def cached_ignored_users(caches: Caches, database: Database) -> IgnoredBy:
    """Whom a user ignores, read once until the user's list changes."""

    @caches.cached(
        name="ignored_users", max_entries=MAX_USERS, max_bytes=MAX_BYTES, size_of=_size_of
    )
    async def ignored_by(user_id: str) -> frozenset[str]:
        def work(txn: Transaction) -> frozenset[str]:
            found = read_account_data(txn, user_id, None, IGNORED_USER_LIST)
            return ignored_in(found.content, user_id)

        return await database.run("read ignored users", work, read_only=True)

    return ignored_by


def ignored_in(content: bytes | None, user_id: str) -> frozenset[str]:
    """The users in the content of a list. Nobody ignores themselves."""
    if content is None:
        return _NOBODY
    listed = jsons.decode(content, "a list of ignored users").get("ignored_users")
    if not isinstance(listed, dict) or not listed:
        return _NOBODY
    return frozenset(list(listed)[:MAX_IGNORED]) - {user_id}


def _size_of(users: frozenset[str]) -> int:
    return _SET_BYTES + _USER_BYTES * len(users)
