"""What is signed of a JSON object, and whether a signature fits.

Source: https://spec.matrix.org/v1.16/appendices/#signing-json
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nacl.exceptions import BadSignatureError
from signedjson.types import VerifyKey
from unpaddedbase64 import decode_base64

from synrepl.rooms.canonical_json import canonical_json

#: How the ID of a key begins whose algorithm is known.
ED25519 = "ed25519:"

_NOT_SIGNED = ("signatures", "unsigned")


def signed_json(fields: Mapping[str, Any]) -> bytes:
    """What a signature covers: canonical JSON without ``signatures`` and ``unsigned``.

    :raises NoCanonicalJson: there is none
    """
    return canonical_json({key: fields[key] for key in fields if key not in _NOT_SIGNED})


def decoded_signature(signature: object) -> bytes | None:
    """The bytes of a signature as it stands in JSON; None for what is no Base64."""
    if not isinstance(signature, str):
        return None
    try:
        return decode_base64(signature)
    except ValueError:
        return None


def verifies(signed: bytes, signature: bytes | None, key: VerifyKey) -> bool:
    """Whether a key made a signature of this.

    :param signature: see :func:`decoded_signature`
    """
    if signature is None:
        return False
    try:
        key.verify(signed, signature)
    except (BadSignatureError, ValueError):
        return False
    return True
