"""The keys of this server, which are published, and the document with them."""

from __future__ import annotations

from collections.abc import Sequence

from signedjson.key import encode_verify_key_base64, get_verify_key
from signedjson.types import SigningKey

from synrepl.core.clock import Clock
from synrepl.federation.published_keys import OwnKey, own_key_document
from synrepl.rooms import ServerKey, server_key
from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.server_keys import add_own_key, read_own_keys

#: Seconds for which the keys in the database are remembered: another process may have replaced the key.
REMEMBERED_S = 60.0


class OwnKeys:
    """The keys of this server.

    :param signing_key: with which this process signs
    """

    def __init__(
        self, clock: Clock, database: Database, server_name: str, signing_key: SigningKey
    ) -> None:
        self.server_name = server_name
        self.signing_key = signing_key
        self._clock = clock
        self._database = database
        self._verify_key = encode_verify_key_base64(get_verify_key(signing_key))
        self._keys: Sequence[OwnKey] = ()
        self._document = b""
        self._read_at: float | None = None

    @property
    def key_id(self) -> str:
        """The ID of the key with which this process signs."""
        return f"{self.signing_key.alg}:{self.signing_key.version}"

    async def document(self) -> bytes:
        """The document with the keys, signed by this process."""
        await self._refresh()
        return self._document

    async def server_keys(self) -> dict[str, ServerKey]:
        """The keys, by their IDs, as those of other servers are known."""
        await self._refresh()
        return {
            key.key_id: server_key(key.key_id, key.verify_key, key.expires_ms) for key in self._keys
        }

    async def _refresh(self) -> None:
        now = self._clock.seconds()
        if self._read_at is not None and now < self._read_at + REMEMBERED_S:
            return
        now_ms = int(now * 1000)

        def work(txn: Transaction) -> Sequence[OwnKey]:
            found = read_own_keys(txn)
            if all(key.key_id != self.key_id for key in found):
                add_own_key(txn, self.key_id, self._verify_key, now_ms)
                found = read_own_keys(txn)
            return found

        self._keys = await self._database.run("own keys", work)
        self._document = own_key_document(self.server_name, self._keys, self.signing_key, now_ms)
        self._read_at = now
