"""CPU time of multiset hashes of a state's entries: what adding or removing one entry costs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import numpy as np
from nacl import bindings

from benchmarks.harness import Row, Scale, cpu, shown

_SECRET = bytes(range(32))
_LTHASH_BYTES = 2048
_POINT_BYTES = 32


def run(scale: Scale) -> Iterator[Row]:
    """Measure each hash; a change of an entry removes one element and adds another."""
    elements = [
        b"m.room.member\0@user%d:a.example\0$" % number
        + hashlib.sha256(b"%d" % number).hexdigest().encode()[:43]
        for number in range(scale.of(2_000))
    ]
    keyed = "BLAKE2b with a secret key, sum modulo 2^{}"
    hashes: dict[str, tuple[Callable[[list[bytes]], object], int, str]] = {
        keyed.format(128): (partial(_keyed_sum, 16), 16, "safe while the key is secret"),
        keyed.format(256): (partial(_keyed_sum, 32), 32, "the same"),
        "LtHash16 of SHAKE128": (_lthash, _LTHASH_BYTES, "safe without a key"),
        "LtHash16 of BLAKE2b": (_lthash_blake, _LTHASH_BYTES, "safe without a key"),
        "SHAKE128, sum modulo 2^16384": (_wide_sum, _LTHASH_BYTES, "safe without a key"),
        "sum of points of ed25519": (_points, _POINT_BYTES, "safe without a key"),
    }
    for name, (work, size, remark) in hashes.items():
        some = elements[:200] if work is _points else elements
        times = [cpu(partial(work, some)) / len(some) * 1e6 for _ in range(scale.repetitions)]
        yield Row(
            f"digest: {name}",
            median(times),
            "µs an element",
            None,
            (min(times), max(times)),
            f"{size:,} bytes to go on from; {remark}",
            {"bytes": size},
        )
    times = [cpu(partial(_collapse, len(elements))) / len(elements) * 1e6 for _ in range(5)]
    yield Row(
        "digest: collapsing 2,048 bytes to 32",
        median(times),
        "µs a group",
        None,
        (min(times), max(times)),
        f"{shown(median(times))} µs besides, for each group",
    )


def _keyed_sum(size: int, elements: list[bytes]) -> bytes:
    total = 0
    for each in elements:
        found = hashlib.blake2b(each, key=_SECRET, digest_size=size).digest()
        total += int.from_bytes(found, "little")
    return (total % (1 << 8 * size)).to_bytes(size, "little")


def _lthash(elements: list[bytes]) -> bytes:
    total = np.zeros(_LTHASH_BYTES // 2, np.uint16)
    for each in elements:
        total += np.frombuffer(hashlib.shake_128(each).digest(_LTHASH_BYTES), np.uint16)
    return total.tobytes()


def _lthash_blake(elements: list[bytes]) -> bytes:
    total = np.zeros(_LTHASH_BYTES // 2, np.uint16)
    for each in elements:
        seed = hashlib.blake2b(each).digest()
        parts = [
            hashlib.blake2b(seed + bytes([nth])).digest() for nth in range(_LTHASH_BYTES // 64)
        ]
        total += np.frombuffer(b"".join(parts), np.uint16)
    return total.tobytes()


def _wide_sum(elements: list[bytes]) -> bytes:
    total = 0
    for each in elements:
        total += int.from_bytes(hashlib.shake_128(each).digest(_LTHASH_BYTES), "little")
    return (total % (1 << 8 * _LTHASH_BYTES)).to_bytes(_LTHASH_BYTES, "little")


def _points(elements: list[bytes]) -> bytes:
    total: bytes | None = None
    for each in elements:
        seed = hashlib.blake2b(each, digest_size=_POINT_BYTES).digest()
        point = bindings.crypto_core_ed25519_from_uniform(seed)
        total = point if total is None else bindings.crypto_core_ed25519_add(total, point)
    return total or b""


def _collapse(times: int) -> None:
    total = bytes(_LTHASH_BYTES)
    for _ in range(times):
        hashlib.blake2b(total, digest_size=32).digest()
