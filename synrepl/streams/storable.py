"""Finds values that must not be stored in a row although Python can represent them.

Postgres's ``text`` cannot hold NUL, UTF-8 has no lone surrogates, and JSON has
no NaN, no infinities, no keys but strings and only its own types.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from synrepl.core.jsons import MAX_DEPTH


class UnstorableValue(NamedTuple):
    """The path of a value that cannot be stored, such as ``$[2].name``, and the reason."""

    path: str
    reason: str


def first_unstorable(value: Any, path: str) -> UnstorableValue | None:
    """The first part of a JSON-like value that cannot be stored, or None.

    :param path: the path of the value itself
    """
    return _first_fault(value, path, MAX_DEPTH)


def too_deep(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Whether lists and objects are nested more than ``depth`` levels deep."""
    if isinstance(value, dict):
        return depth == 0 or any(too_deep(item, depth - 1) for item in value.values())
    if isinstance(value, list):
        return depth == 0 or any(too_deep(item, depth - 1) for item in value)
    return False


def _first_fault(value: Any, path: str, depth: int) -> UnstorableValue | None:
    if isinstance(value, str):
        return _text_fault(value, path)
    if value is None or isinstance(value, (bool, int)):
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else UnstorableValue(path, f"JSON has no {value}")
    if not isinstance(value, (list, dict)):
        return UnstorableValue(path, f"JSON has no {type(value).__name__}")
    if depth == 0:
        return UnstorableValue(path, f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, list):
        for index, item in enumerate(value):
            if fault := _first_fault(item, f"{path}[{index}]", depth - 1):
                return fault
        return None
    for key, item in value.items():
        if not isinstance(key, str):
            return UnstorableValue(path, f"a key is not text but {type(key).__name__}")
        if fault := _text_fault(key, path):
            return UnstorableValue(path, f"in a key, {fault.reason}")
        if fault := _first_fault(item, f"{path}.{key[:40]}", depth - 1):
            return fault
    return None


def _text_fault(text: str, path: str) -> UnstorableValue | None:
    if "\0" in text:
        return UnstorableValue(path, "text may not hold the character NUL")
    try:
        text.encode()
    except UnicodeEncodeError:
        return UnstorableValue(path, "text may not hold a lone surrogate")
    return None
