"""The digest of a state: a hash of the set of its entries, updated in the time of a change.

Two states with the same entries have the same digest, however they were made and are stored. So a digest
proves that a group was read, moved or rewritten without loss.

It is the sum, modulo 2^128, of a keyed hash of each entry. Adding or removing an entry is one addition, and the
digest of a group follows from that of any other group and what differs. The key is the room's secret.

Servers choose event IDs, so somebody may look for two sets of entries with the same digest. XOR falls to linear
algebra. Sums of hashes are the AdHash of Bellare and Micciancio
(https://cseweb.ucsd.edu/~mihir/papers/incremental.pdf), and without a key the generalised birthday problem
(https://www.iacr.org/archive/crypto2002/24420288/24420288.pdf) breaks even sums of 256 bits. With a secret key,
nobody else can compute a single summand.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

from synrepl.rooms import StateKey

#: Size of a digest in bytes.
DIGEST_BYTES = 16

_MODULUS = 1 << 8 * DIGEST_BYTES


class StateDigest(NamedTuple):
    """The digest of a state; add and remove entries.

    :ivar key: the room's secret
    """

    key: bytes
    total: int = 0

    def added(self, entries: Iterable[tuple[StateKey, str]]) -> StateDigest:
        """With more entries, given with their event IDs."""
        key = self.key
        return StateDigest(
            key, (self.total + sum([entry_hash(key, each) for each in entries])) % _MODULUS
        )

    def removed(self, entries: Iterable[tuple[StateKey, str]]) -> StateDigest:
        """Without some of its entries."""
        key = self.key
        return StateDigest(
            key, (self.total - sum([entry_hash(key, each) for each in entries])) % _MODULUS
        )

    @property
    def digest(self) -> bytes:
        """What is stored with a group."""
        return self.total.to_bytes(DIGEST_BYTES, "big")

    @classmethod
    def stored(cls, key: bytes, digest: bytes) -> StateDigest:
        """The digest of a stored group, to go on from."""
        return cls(key, int.from_bytes(digest, "big"))


def digest_of_total(total: int) -> bytes:
    """The digest of a whole state, given as the sum of the hashes of its entries; see :func:`entry_hash`."""
    return (total % _MODULUS).to_bytes(DIGEST_BYTES, "big")


def digest_of(key: bytes, entries: Iterable[tuple[StateKey, str]]) -> bytes:
    """The digest of a whole state, given as keys and event IDs."""
    return StateDigest(key).added(entries).digest


def entry_hash(key: bytes, entry: tuple[StateKey, str]) -> int:
    """The hash of an entry, given as state key and event ID; lengths keep the three texts apart.

    :param key: the room's secret
    """
    (kind, state_key), event_id = entry
    parts = f"{len(kind)}:{kind}{len(state_key)}:{state_key}{event_id}"
    return int.from_bytes(
        blake2b(parts.encode(), key=key, digest_size=DIGEST_BYTES).digest(), "big"
    )
