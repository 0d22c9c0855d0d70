"""Measures the memory of objects."""

from __future__ import annotations

import gc
import sys
from types import ModuleType
from typing import Any


def size_of(roots: list[Any], known: set[int]) -> int:
    """Bytes of objects and all that they refer to, each counted once, without strings and known objects."""
    seen, left, size = set(known), list(roots), 0
    while left:
        value = left.pop()
        if id(value) in seen or isinstance(value, (type, ModuleType, str)) or callable(value):
            continue
        seen.add(id(value))
        size += sys.getsizeof(value)
        left.extend(gc.get_referents(value))
    return size
