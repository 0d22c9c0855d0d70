"""Shows the rows of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from synrepl.cli.terminal import plain_table, printable, show


def show_rows(
    title: str,
    schema: Any,
    rows: Sequence[Mapping[str, Any]],
    further: int | None,
    nothing: str = "No rows: what it reads is empty so far.",
) -> None:
    """Print a table.

    :param schema: a ``StructType``, whose columns are shown
    :param further: number of rows that are not shown; None: some
    :param nothing: what to say instead if there are no rows
    """
    if not rows:
        show(title, "", nothing)
        return
    names = [field.name for field in schema]
    numbers = {field.name for field in schema if field.dataType.typeName() in ("long", "double")}
    table = plain_table(
        *(name.replace("_", " ") + (">" if name in numbers else "") for name in names)
    )
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in names))
    show(title, "", table)
    if further is None:
        show("and more rows (--rows, --json, --parquet)")
    elif further > 0:
        show(f"and {further:,} more row{'' if further == 1 else 's'} (--rows, --json)")


def with_json_text(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with the bytes in the column ``json`` as text, where they are UTF-8."""
    found = dict(row)
    raw = found.get("json")
    if isinstance(raw, bytes | bytearray):
        with suppress(UnicodeDecodeError):
            found["json"] = raw.decode()
    return found


def plain_cell(value: Any) -> Any:
    """A cell as JSON; bytes in hexadecimal, everything that JSON does not have as text."""
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, list):
        return [plain_cell(each) for each in value]
    if isinstance(value, tuple) and hasattr(value, "asDict"):
        return {name: plain_cell(cell) for name, cell in value.asDict().items()}
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() else f"{value:,.3f}"
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, list):
        return ", ".join(_cell(each) for each in value) or "-"
    if isinstance(value, tuple):
        return " ".join(_cell(each) for each in value)
    return printable(str(value))
