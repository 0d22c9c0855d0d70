"""Canonical JSON of what anybody may have made, with one error where there is none.

Source: https://spec.matrix.org/v1.16/appendices/#canonical-json
"""

from __future__ import annotations

from typing import Any

from synrepl.core.errors import InputError
from synrepl.core.jsons import canonical, canonical_of_decoded


class NoCanonicalJson(InputError):
    """there is no canonical JSON of it: {reason}"""


def canonical_json(value: Any) -> bytes:
    """Canonical JSON.

    :raises NoCanonicalJson: it holds NaN, an infinity, half a surrogate pair or something that is no
        JSON, or nests too deep
    """
    try:
        return canonical(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise _none(error) from None


def canonical_json_of_decoded(value: Any) -> bytes:
    """The same of what :func:`~synrepl.core.jsons.decode_exactly` gave; quicker.

    :raises NoCanonicalJson: see :func:`canonical_json`
    """
    try:
        return canonical_of_decoded(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise _none(error) from None


def _none(error: Exception) -> NoCanonicalJson:
    return NoCanonicalJson(reason=str(error) or type(error).__name__)
