"""Signing keys of simulated servers, each derived from the name of its server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256

from signedjson.key import decode_signing_key_base64
from signedjson.types import SigningKey
from unpaddedbase64 import encode_base64

from synrepl.rooms import ServerKey, server_key

#: ID of the only key of each simulated server.
KEY_ID = "ed25519:1"


class SimulatedKeys(Mapping[str, Mapping[str, ServerKey]]):
    """The keys of all servers, as :data:`synrepl.rooms.Keys`: whatever name is asked for has a key.

    A server of the product gets the key that it has by :meth:`add`.
    """

    def __init__(self) -> None:
        self._signing: dict[str, SigningKey] = {}
        self._public: dict[str, Mapping[str, ServerKey]] = {}

    def signing_key(self, server: str) -> SigningKey:
        """The signing key of a server."""
        if server not in self._signing:
            seed = encode_base64(sha256(server.encode()).digest())
            self.add(server, decode_signing_key_base64("ed25519", "1", seed))
        return self._signing[server]

    def add(self, server: str, key: SigningKey) -> None:
        """Give a server this key."""
        self._signing[server] = key
        public = encode_base64(key.verify_key.encode())
        key_id = f"{key.alg}:{key.version}"
        self._public[server] = {key_id: server_key(key_id, public)}

    def public_key(self, server: str) -> str:
        """The public key of a server, in unpadded Base64."""
        return encode_base64(self.signing_key(server).verify_key.encode())

    def __getitem__(self, server: str) -> Mapping[str, ServerKey]:
        self.signing_key(server)
        return self._public[server]

    def __iter__(self) -> Iterator[str]:
        return iter(self._public)

    def __len__(self) -> int:
        return len(self._public)


def wrong_key() -> SigningKey:
    """A key that belongs to no server."""
    seed = encode_base64(sha256(b"no server").digest())
    return decode_signing_key_base64("ed25519", "1", seed)
