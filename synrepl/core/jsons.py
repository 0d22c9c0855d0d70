"""JSON at the edges: compact encoding, bounded decoding, canonical bytes.

Matrix's canonical JSON: https://spec.matrix.org/v1.16/appendices/#canonical-json
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isinf
from typing import Any

import canonicaljson
import msgspec
import orjson

from synrepl.core.errors import InputError

#: Maximum nesting depth of untrusted JSON. Matrix sets no limit, but decoders recurse.
MAX_DEPTH = 100

#: The same for :func:`decode_exactly`: the limit of orjson's encoder, so that encoding checks it.
MAX_EXACT_DEPTH = 254


class BadJson(InputError):
    """{what} is not valid JSON: {reason}"""


class Fractional(float):
    """A number written with a fraction or an exponent, even if it is whole (``1.0``, ``1e3``).

    It marks such numbers for the fast encoder: orjson encodes every float but refuses a subclass.
    """

    __slots__ = ()


def _fractional(text: str) -> Fractional:
    number = Fractional(text)
    if isinf(number):
        raise ValueError("Number out of range")
    return number


_PLAIN = msgspec.json.Decoder()
_EXACT = msgspec.json.Decoder(float_hook=_fractional)

_CANONICAL = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER

#: Matches a string as a whole, so that its contents do not count, or a negative zero.
_TEXT_OR_NEGATIVE_ZERO = re.compile(rb'"(?:[^"\\]|\\.)*"|(-0)(?![.eE\d])')


def encode(value: Any, convert: Callable[[Any], Any] | None = None) -> bytes:
    """Compact UTF-8 JSON, no newline.

    :param convert: what stands for something that JSON cannot represent
    :raises TypeError: ``value`` contains something that JSON cannot represent
    """
    return orjson.dumps(value, convert)


def decode(data: bytes | str, what: str) -> Any:
    """Decode untrusted JSON exactly (large integers stay integers).

    Of duplicate keys the last one counts. Text with half a surrogate pair is refused.

    :param what: name of the input for the error
    :raises BadJson: it is malformed, or nested deeper than :data:`MAX_DEPTH`
    """
    try:
        value = _PLAIN.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadJson(what=what, reason=str(error) or type(error).__name__) from None
    _check_depth(value, what, MAX_DEPTH)
    return value


def decode_exactly(data: bytes, what: str) -> tuple[Any, int | None]:
    """Decode like :func:`decode`, with numbers not written as integers as :class:`Fractional`.

    The result can be passed to :func:`canonical_of_decoded`.

    :return: the value, and the length of its canonical JSON in bytes; None if it contains a number
        other than an integer within ±(2^53 − 1), which strict canonical JSON does not allow
    :raises BadJson: as :func:`decode`, but with the limit :data:`MAX_EXACT_DEPTH`
    """
    try:
        value = _EXACT.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadJson(what=what, reason=str(error) or type(error).__name__) from None
    try:
        return value, len(orjson.dumps(value, option=orjson.OPT_STRICT_INTEGER))
    except TypeError:
        _check_depth(value, what, MAX_EXACT_DEPTH)
        return value, None


def canonical(value: Any) -> bytes:
    """Encode as Matrix canonical JSON.

    Uses orjson where it provably agrees with canonicaljson (no floats, integers
    within 2^53), else canonicaljson.

    :raises ValueError: for NaN, infinities and half a surrogate pair
    """
    if has_float(value):
        return canonicaljson.encode_canonical_json(value)
    return canonical_of_decoded(value)


def canonical_of_decoded(value: Any) -> bytes:
    """Encode the result of :func:`decode_exactly` as canonical JSON; fast, without a search for floats.

    :raises ValueError: see :func:`canonical`
    """
    try:
        return orjson.dumps(value, option=_CANONICAL)
    except TypeError:
        return canonicaljson.encode_canonical_json(value)


def has_negative_zero(data: bytes) -> bool:
    """Whether this JSON contains the number ``-0``, which decodes to 0 and shows only in the text."""
    if b"-0" not in data:
        return False
    return any(found.group(1) for found in _TEXT_OR_NEGATIVE_ZERO.finditer(data))


def has_float(value: Any) -> bool:
    """Whether the value contains a float at any depth."""
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


def _check_depth(value: Any, what: str, most: int) -> None:
    level = [value]
    for _ in range(most):
        below = []
        for item in level:
            if isinstance(item, dict):
                below += [each for each in item.values() if isinstance(each, (dict, list))]
            elif isinstance(item, list):
                below += [each for each in item if isinstance(each, (dict, list))]
        if not below:
            return
        level = below
    raise BadJson(what=what, reason=f"nested deeper than {most} levels")
