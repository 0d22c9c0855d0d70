"""Rows as one JSON parameter of a statement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from synrepl.core import jsons
from synrepl.storage.store import BadValue


def json_rows(
    table: str,
    rows: Sequence[Mapping[str, object]],
    convert: Callable[[Any], object] | None = None,
) -> str:
    """Rows as an array of objects, for ``json_to_recordset`` and the like.

    :param table: for the error
    :param convert: what stands for a cell that JSON cannot represent
    :raises BadValue: text with a lone surrogate, an integer of more than 64 bits, or a type without a counterpart
    """
    try:
        return jsons.encode(rows, convert).decode()
    except TypeError as error:
        raise BadValue(where=f"a value of {table}", reason=str(error)) from None
