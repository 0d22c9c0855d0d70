"""Durations and sizes as people write them: ``15s``, ``500ms``, ``64KiB``."""

from __future__ import annotations

import re

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

#: Longer than any sensible timeout, and short enough for clocks and ``select`` not to overflow.
LONGEST_SECONDS = 10 * 365 * _SECONDS["d"]
LARGEST_BYTES = 2**40

_QUANTITY = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([A-Za-z]+)", re.ASCII)


def duration(value: object) -> float:
    """Parse ``"500ms"``, ``"15s"``, ``"5m"``, ``"2h"``, ``"7d"`` or a number of seconds.

    :raises ValueError: it is none of these, negative, or longer than ten years
    """
    return _bounded(_amount(value, _SECONDS), LONGEST_SECONDS)


def size(value: object) -> int:
    """Parse ``"512B"``, ``"64KiB"``, ``"16MiB"``, ``"1GiB"`` or a whole number of bytes.

    :raises ValueError: it is none of these, or not between 1 byte and 1 TiB
    """
    amount = _bounded(_amount(value, _BYTES), LARGEST_BYTES)
    if amount < 1 or amount != int(amount):
        raise ValueError(f"{value!r} is not a whole number of bytes")
    return int(amount)


def _amount(value: object, units: dict[str, float] | dict[str, int]) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    matched = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if matched is None or matched[2] not in units:
        raise ValueError(f"{value!r} has no known unit")
    return float(matched[1]) * units[matched[2]]


def _bounded(amount: float, largest: float) -> float:
    if not 0 <= amount <= largest:  # false for NaN too
        raise ValueError(f"{amount!r} is out of range")
    return amount
