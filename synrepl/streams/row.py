"""Typed rows.

A row class is a frozen ``msgspec.Struct`` whose fields are the stream's
columns. It is decoded directly from the JSON array on the wire and encoded
directly to it, without an intermediate dictionary or tuple.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec


class Row(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False):
    """Base class of all rows. Trailing cells with a default may be left out on the wire."""


#: A whole number that fits Postgres's ``bigint``.
BigInt = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

#: Any JSON value; kept in a ``json`` column.
Json = Any
