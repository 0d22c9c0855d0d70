"""Formats values as table cells."""

from __future__ import annotations

from typing import Any

from synrepl.cli.terminal import printable


def cell(value: Any) -> str:
    """Format a value; ``-`` for none."""
    return "-" if value is None or value == "" else printable(str(value))


def duration(seconds: Any) -> str:
    """Format seconds in a fitting unit; ``-`` for none."""
    if not isinstance(seconds, (int, float)):
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, _ = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
