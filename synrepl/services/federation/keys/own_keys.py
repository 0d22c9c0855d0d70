"""The keys of this server, which are published, and the document with them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from math import inf

from signedjson.key import encode_verify_key_base64, get_verify_key
from signedjson.types import SigningKey

from synrepl.core.clock import Clock
from synrepl.core.errors import ConfigError
from synrepl.federation.published_keys import OwnKey, own_key_document
from synrepl.rooms import ServerKey, server_key
from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.server_keys import add_own_key, expire_own_keys, read_own_keys

#: Seconds for which the keys in the database are remembered: another process may have replaced the key.
REMEMBERED_S = 60.0


class SigningKeyReplaced(ConfigError):
    """rooms.signing_key: the key {key_id} was replaced at {when} and is not valid any more; put the key that 'synrepl rooms rotate-key' made into the file of this process"""


def public_key(key: SigningKey) -> tuple[str, str]:
    """The ID and the public part of a key, in unpadded Base64."""
    return f"{key.alg}:{key.version}", str(encode_verify_key_base64(get_verify_key(key)))


def record_rotation(
    txn: Transaction, old: SigningKey, new: SigningKey, now_ms: int, expires_ms: int
) -> Sequence[str]:
    """Record that a key replaces all others, which stay valid for some time. It may be recorded again.

    :param expires_ms: the time at which the others end
    :return: the IDs of keys that end then
    """
    for key in (old, new):
        add_own_key(txn, *public_key(key), now_ms)
    return expire_own_keys(txn, public_key(new)[0], expires_ms)


class OwnKeys:
    """The keys of this server.

    :param signing_key: with which this process signs
    :ivar key_id: the ID of that key
    """

    def __init__(
        self, clock: Clock, database: Database, server_name: str, signing_key: SigningKey
    ) -> None:
        self.server_name = server_name
        self.signing_key = signing_key
        self._clock = clock
        self._database = database
        self.key_id, self._verify_key = public_key(signing_key)
        self._keys: Sequence[OwnKey] = ()
        self._document = b""
        self._read_at: float | None = None

    async def check(self) -> None:
        """Check that the key of this process is valid.

        :raises SigningKeyReplaced:
        """
        await self._refresh()
        for key in self._keys:
            if (
                key.key_id == self.key_id
                and (key.expires_ms or inf) <= self._clock.seconds() * 1000
            ):
                when = datetime.fromtimestamp((key.expires_ms or 0) / 1000, UTC)
                raise SigningKeyReplaced(key_id=self.key_id, when=f"{when:%Y-%m-%d %H:%M:%S} UTC")

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
