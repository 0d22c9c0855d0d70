"""JSON at the edges: compact encoding, bounded decoding, canonical bytes.

Matrix's canonical JSON: https://spec.matrix.org/v1.11/appendices/#canonical-json
"""

from __future__ import annotations

from typing import Any

import canonicaljson
import msgspec
import orjson

from synrepl.core.errors import InputError

#: How deep untrusted JSON may nest. Matrix sets no number; decoders recurse.
MAX_DEPTH = 100


class BadJson(InputError):
    """{what} is not valid JSON: {reason}"""


def encode(value: Any) -> bytes:
    """Compact UTF-8 JSON, no newline.

    :raises TypeError: when ``value`` holds something JSON has no word for
    """
    return orjson.dumps(value)


def decode(data: bytes | str, what: str) -> Any:
    """Decode untrusted JSON exactly (large integers stay integers).

    :param what: names the input in the error
    :raises BadJson: when it is malformed, or nests deeper than :data:`MAX_DEPTH`
    """
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadJson(what=what, reason=str(error) or type(error).__name__) from None
    _check_depth(value, what)
    return value


def canonical(value: Any) -> bytes:
    """Matrix canonical JSON.

    orjson does the work where it provably agrees with canonicaljson (no
    floats, integers within 2^53); anything else goes to canonicaljson.

    :raises ValueError: for NaN and infinities
    """
    if not _has_float(value):
        try:
            return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER)
        except TypeError:
            pass
    return canonicaljson.encode_canonical_json(value)


def _has_float(value: Any) -> bool:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, float):
            return True
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, (list, tuple)):
            stack.extend(item)
    return False


def _check_depth(value: Any, what: str) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        if not below:
            return
        level = below
    raise BadJson(what=what, reason=f"nested deeper than {MAX_DEPTH} levels")
