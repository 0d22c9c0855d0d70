"""The servers' keys that an import knows."""

from __future__ import annotations

from collections.abc import Iterable

from synrepl.rooms import Keys, ServerKey
from synrepl.storage.database import Transaction
from synrepl.storage.foreign.rooms.keys import server_keys

#: Servers whose keys are kept.
_MAX_SERVERS = 20_000


class KeyRing:
    """Keys from the source's database, and given ones, which take precedence.

    :param given: such as those of the source itself, which it does not store
    """

    def __init__(self, given: Keys) -> None:
        self._given = given
        self._keys: dict[str, dict[str, ServerKey]] = {}

    @property
    def keys(self) -> Keys:
        """The keys by server; those of a server without known keys are empty."""
        return self._keys

    def load(self, txn: Transaction, servers: Iterable[str]) -> None:
        """Read the keys of servers that were not read before."""
        missing = {each for each in servers if each not in self._keys}
        if not missing:
            return
        if len(self._keys) + len(missing) > _MAX_SERVERS:
            self._keys.clear()
        # Anybody can write anything into ``signatures``; PostgreSQL has no text with a NUL.
        found = server_keys(txn, {each for each in missing if "\0" not in each})
        for server in missing:
            self._keys[server] = {**found.get(server, {}), **self._given.get(server, {})}
