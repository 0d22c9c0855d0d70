"""JSON at the edges: compact encoding, bounded decoding, canonical bytes.

Matrix's canonical JSON: https://spec.matrix.org/v1.16/appendices/#canonical-json
"""

from __future__ import annotations

import re
from math import isinf
from typing import Any

import canonicaljson
import msgspec
import orjson

from synrepl.core.errors import InputError

#: How deep untrusted JSON may nest. Matrix sets no number; decoders recurse.
MAX_DEPTH = 100

#: The same of what is decoded exactly: as deep as orjson encodes, so that encoding it is the check.
MAX_EXACT_DEPTH = 254


class BadJson(InputError):
    """{what} is not valid JSON: {reason}"""


class Fractional(float):
    """A number that was written with a fraction or an exponent, even if it is a whole one (``1.0``, ``1e3``).

    What is quick to decode and to encode has no other way to tell: orjson encodes every float but
    refuses a subclass.
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

#: A text, or what is looked for. A text is taken whole, so that nothing in it counts.
_TEXT_OR_NEGATIVE_ZERO = re.compile(rb'"(?:[^"\\]|\\.)*"|(-0)(?![.eE\d])')


def encode(value: Any) -> bytes:
    """Compact UTF-8 JSON, no newline.

    :raises TypeError: when ``value`` holds something JSON has no word for
    """
    return orjson.dumps(value)


def decode(data: bytes | str, what: str) -> Any:
    """Decode untrusted JSON exactly (large integers stay integers).

    Of keys that occur twice the last one counts. Text with half a surrogate pair is refused.

    :param what: names the input in the error
    :raises BadJson: when it is malformed, or nests deeper than :data:`MAX_DEPTH`
    """
    try:
        value = _PLAIN.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadJson(what=what, reason=str(error) or type(error).__name__) from None
    _check_depth(value, what, MAX_DEPTH)
    return value


def decode_exactly(data: bytes, what: str) -> tuple[Any, int | None]:
    """The same, and each number that is not written as an integer is a :class:`Fractional`.

    So what comes out may be given to :func:`canonical_of_decoded`.

    :return: beside the value, how many bytes its canonical JSON has; None where there is a number
        other than an integer within ±(2^53 − 1): strict canonical JSON has no word for those
    :raises BadJson: as :func:`decode`, but for :data:`MAX_EXACT_DEPTH`
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
    """Matrix canonical JSON.

    orjson does the work where it provably agrees with canonicaljson (no
    floats, integers within 2^53); anything else goes to canonicaljson.

    :raises ValueError: for NaN, infinities and half a surrogate pair
    """
    if has_float(value):
        return canonicaljson.encode_canonical_json(value)
    return canonical_of_decoded(value)


def canonical_of_decoded(value: Any) -> bytes:
    """The same of what :func:`decode_exactly` gave, many times as fast: nothing is looked through for floats.

    :raises ValueError: see :func:`canonical`
    """
    try:
        return orjson.dumps(value, option=_CANONICAL)
    except TypeError:
        return canonicaljson.encode_canonical_json(value)


def has_negative_zero(data: bytes) -> bool:
    """Whether ``-0`` is among the numbers of this JSON; it decodes to 0, so only the text shows it."""
    if b"-0" not in data:
        return False
    return any(found.group(1) for found in _TEXT_OR_NEGATIVE_ZERO.finditer(data))


def has_float(value: Any) -> bool:
    """Whether a float is anywhere in it."""
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
