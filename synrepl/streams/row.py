"""Typed rows: what one line's worth of a fact is in Python.

A row class is a frozen ``msgspec.Struct`` whose fields are the stream's
columns. It is decoded straight from the JSON array on the wire and written
straight back, without a dictionary or a tuple in between.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec


class Row(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False):
    """Base of all row classes. Trailing cells that have a default may be left out on the wire."""


#: A whole number that fits Postgres's ``bigint``.
BigInt = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

#: Any JSON value; kept in a ``json`` column.
Json = Any
