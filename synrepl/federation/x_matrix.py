"""The header by which a server signs its requests: ``Authorization: X-Matrix origin="…",destination="…",key="…",sig="…"``.

Source: https://spec.matrix.org/v1.16/server-server-api/#request-authentication. Its text calls the signature
``signature``, its examples and every server ``sig``: that is what is sent; both are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nacl.exceptions import BadSignatureError
from signedjson.types import SigningKey
from unpaddedbase64 import decode_base64, encode_base64

from synrepl.core import jsons
from synrepl.core.errors import InputError, Refused
from synrepl.federation.server_names import UnusableServerName, parse_server_name
from synrepl.rooms import ServerKey

#: Maximum length of a header, and number of its parameters.
MAX_HEADER = 4096
MAX_PARAMETERS = 20

_SCHEME = re.compile(r"X-Matrix +", re.IGNORECASE)

#: A parameter, and the comma after it. Values may be tokens of RFC 7230; colons, and slashes of signatures, are allowed
#: without quotes for older servers.
_PARAMETER = re.compile(
    r"[ \t]*(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*=[ \t]*"
    r"(?:\"(?P<quoted>(?:[^\"\\]|\\.)*)\"|(?P<plain>[!#$%&'*+.^_`|~0-9A-Za-z:/\[\]-]+))"
    r"[ \t]*(?:,[ \t,]*|$)",
    re.ASCII,
)
_ESCAPED = re.compile(r"\\(.)")

_KEY_ID = re.compile(r"ed25519:[A-Za-z0-9_]{1,200}", re.ASCII)


class MissingXMatrix(Refused):
    """this needs a signature of the server that asks, as the header 'Authorization: X-Matrix …'"""


class BadXMatrix(InputError):
    """the header Authorization is no X-Matrix signature: {reason}"""


class WrongDestination(Refused):
    """the request is signed for {destination!r}, and this is {server_name}"""


class BadRequestSignature(Refused):
    """the signature of this request by {origin} does not verify: {reason}"""


class XMatrix(NamedTuple):
    """A signature of a request.

    :ivar origin: the server that signed
    :ivar destination: the server that it was signed for; None where an older server does not say
    :ivar key_id: such as ``ed25519:a_1``
    :ivar signature: in unpadded Base64
    """

    origin: str
    destination: str | None
    key_id: str
    signature: str


def signed_request(
    method: str, uri: str, origin: str, destination: str, content: bytes | None
) -> bytes:
    """The bytes that a signature of a request covers.

    :param uri: the path with its query, as sent
    :param content: canonical JSON of the body; None without a body
    """
    start = b"{" if content is None else b'{"content":' + content + b","
    names = {"destination": destination, "method": method, "origin": origin, "uri": uri}
    return start + jsons.canonical(names)[1:]


def sign_request(
    key: SigningKey, method: str, uri: str, origin: str, destination: str, content: bytes | None
) -> str:
    """Sign a request; see :func:`signed_request`.

    :return: the value of the header
    """
    signed = signed_request(method, uri, origin, destination, content)
    signature = encode_base64(key.sign(signed).signature)
    return (
        f'X-Matrix origin="{origin}",destination="{destination}",'
        f'key="{key.alg}:{key.version}",sig="{signature}"'
    )


def parse_x_matrix(values: Sequence[str], server_name: str) -> XMatrix:
    """Read the header of a request.

    :param values: of all its ``Authorization`` headers
    :param server_name: of this server
    :raises MissingXMatrix: there is no such header
    :raises BadXMatrix: there are several, or it is malformed
    :raises WrongDestination: it was signed for another server
    """
    if not values:
        raise MissingXMatrix()
    if len(values) > 1:
        raise BadXMatrix(reason="it was sent more than once")
    parameters = _parameters(values[0])
    signature = parameters.get("sig", parameters.get("signature"))
    if signature != parameters.get("signature", signature):
        raise BadXMatrix(reason="'sig' and 'signature' are not the same")
    origin, key_id = parameters.get("origin"), parameters.get("key")
    if origin is None or key_id is None or signature is None:
        raise BadXMatrix(reason="it needs origin, key and sig")
    try:
        parse_server_name(origin)
    except UnusableServerName as error:
        raise BadXMatrix(reason=error) from None
    if not _KEY_ID.fullmatch(key_id):
        raise BadXMatrix(reason=f"{key_id[:100]!r} is no ID of an Ed25519 key")
    destination = parameters.get("destination")
    if destination is not None and destination != server_name:
        raise WrongDestination(destination=destination[:300], server_name=server_name)
    return XMatrix(origin, destination, key_id, signature)


def _parameters(header: str) -> Mapping[str, str]:
    if len(header) > MAX_HEADER:
        raise BadXMatrix(reason=f"it is longer than {MAX_HEADER} characters")
    scheme = _SCHEME.match(header)
    if scheme is None:
        raise MissingXMatrix()
    found: dict[str, str] = {}
    at = scheme.end()
    while at < len(header):
        match = _PARAMETER.match(header, at)
        if match is None:
            raise BadXMatrix(reason='its parameters are no list of name="value"')
        name = match["name"].lower()
        if name in found:
            raise BadXMatrix(reason=f"{name[:50]!r} occurs twice")
        if len(found) == MAX_PARAMETERS:
            raise BadXMatrix(reason=f"it has more than {MAX_PARAMETERS} parameters")
        quoted = match["quoted"]
        found[name] = match["plain"] if quoted is None else _ESCAPED.sub(r"\1", quoted)
        at = match.end()
    return found


def verify_request(
    signature: XMatrix,
    key: ServerKey | None,
    method: str,
    uri: str,
    server_name: str,
    content: bytes | None,
    now_ms: int,
) -> None:
    """Verify the signature of a request.

    :param key: the key that it names; None if it is not known
    :param server_name: of this server, whether the header has a destination or not
    :param content: canonical JSON of the body; None without a body
    :raises BadRequestSignature: the key is not known or not valid now, or another request was signed
    """
    if key is None:
        raise _bad(signature, f"its key {signature.key_id} is not known")
    if not key.was_valid(now_ms):
        raise _bad(signature, f"its key {signature.key_id} is not valid any more")
    signed = signed_request(method, uri, signature.origin, server_name, content)
    try:
        key.verify_key.verify(signed, decode_base64(signature.signature))
    except (BadSignatureError, ValueError):
        raise _bad(signature, "it is of another request, or by another key") from None


def _bad(signature: XMatrix, reason: str) -> BadRequestSignature:
    return BadRequestSignature(origin=signature.origin, reason=reason)
