"""The digest of a state: a hash of the set of its entries, updated in the time of a change.

Two states with the same entries have the same digest, however they were made and are stored. So a digest
proves that a group was read, moved or rewritten without loss.

An *accumulator* is the sum, modulo 2^2048, of a 2,048-bit hash of each entry; adding and removing an entry is
one addition. The digest that is stored with each group is the SHA-256 of the accumulator. Accumulators
are kept for the head of each state line, from which others are derived by their difference.

Servers choose event IDs, so somebody may look for two sets of entries with the same digest. XOR falls to linear
algebra: 2,048 hashes span the space. Sums of hashes are the AdHash of Bellare and Micciancio
(https://cseweb.ucsd.edu/~mihir/papers/incremental.pdf); the best known attack is Wagner's generalised birthday
problem (https://www.iacr.org/archive/crypto2002/24420288/24420288.pdf), which takes about 2^(n/(1+log k)) hashes
and k entries. With n = 256 and 65,536 entries that is 2^15, with n = 2,048 it is 2^120. LtHash16 is the same idea
over 1,024 small sums: it takes 2 KiB for each entry, and five times as long to check a state that is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256, shake_128
from typing import NamedTuple

from synrepl.rooms import StateKey

#: Size of an accumulator in bytes.
ACCUMULATOR_BYTES = 256

_MODULUS = 1 << 8 * ACCUMULATOR_BYTES


class StateDigest(NamedTuple):
    """The accumulator of a state; add and remove entries, then take :attr:`digest`."""

    accumulator: int = 0

    def added(self, entries: Iterable[tuple[StateKey, str]]) -> StateDigest:
        """With more entries, given with their event IDs."""
        return StateDigest((self.accumulator + sum(map(entry_hash, entries))) % _MODULUS)

    def removed(self, entries: Iterable[tuple[StateKey, str]]) -> StateDigest:
        """Without some of its entries."""
        return StateDigest((self.accumulator - sum(map(entry_hash, entries))) % _MODULUS)

    @classmethod
    def of_hashes(cls, hashes: Iterable[int]) -> StateDigest:
        """A whole state, given as the hashes of its entries; see :func:`entry_hash`."""
        return cls(sum(hashes) % _MODULUS)

    @property
    def digest(self) -> bytes:
        """The 32 bytes that are stored with a group."""
        return sha256(self.to_bytes()).digest()

    def to_bytes(self) -> bytes:
        """The accumulator, to be stored."""
        return self.accumulator.to_bytes(ACCUMULATOR_BYTES, "big")

    @classmethod
    def from_bytes(cls, stored: bytes) -> StateDigest:
        """A stored accumulator."""
        return cls(int.from_bytes(stored, "big"))


def digest_of(entries: Iterable[tuple[StateKey, str]]) -> bytes:
    """The digest of a whole state, given as keys and event IDs."""
    return StateDigest().added(entries).digest


def entry_hash(entry: tuple[StateKey, str]) -> int:
    """The hash of an entry, given as key and event ID; lengths keep the three texts apart."""
    (kind, state_key), event_id = entry
    parts = f"{len(kind)}:{kind}{len(state_key)}:{state_key}{event_id}"
    return int.from_bytes(shake_128(parts.encode()).digest(ACCUMULATOR_BYTES), "big")
