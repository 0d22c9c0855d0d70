"""The console output of ``synrepl doctor caches``; see :mod:`synrepl.tools.audit.report`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import rich.console
from rich.text import Text

from synrepl.cli.terminal import plain_table, printable
from synrepl.core import jsons

#: The words for the verdicts on entries.
_VERDICTS = {
    "coherent": "coherent",
    "in_flight": "with an invalidation on its way",
    "behind": "not known, for the process was behind",
    "failed": "could not be loaded",
    "incomparable": "with values that cannot be compared",
    "incoherent": "stale",
}


def tables(counts: Mapping[str, Any], audit: Mapping[str, Any]) -> rich.console.Group:
    """Caches, verdicts and stale entries, for the console.

    :param counts: the counters of each cache, as in ``GET /caches``
    :param audit: the report
    """
    parts: list[rich.console.RenderableType] = []
    if counts:
        parts += [_caches(counts), Text()]
    parts += _verdicts(counts, audit)
    for entry in audit.get("stale", []):
        parts += [Text(), *_stale(entry)]
    return rich.console.Group(*parts)


def _caches(counts: Mapping[str, Any]) -> rich.console.RenderableType:
    columns = ("size", "hits", "misses", "evictions", "invalidations")
    table = plain_table("cache", "entries>", *(f"{name}>" for name in columns[1:]))
    for name, of_cache in counts.items():
        table.add_row(Text(_cell(name)), *(Text(_cell(of_cache.get(key))) for key in columns))
    return table


def _verdicts(counts: Mapping[str, Any], audit: Mapping[str, Any]) -> Iterable[Text]:
    checked = audit.get("checked", 0)
    if not checked:
        why = "every cache is empty" if counts else "no cache is open in this process"
        yield Text(f"nothing to check: {why}")
        return
    found = [f"{audit[name]} {words}" for name, words in _VERDICTS.items() if audit.get(name)]
    style = "red" if audit.get("incoherent") else "yellow" if audit.get("failed") else "green"
    entries = "1 entry" if checked == 1 else f"{checked} entries"
    yield Text(f"{entries} checked: {', '.join(found)}", style=style)
    for error, count in audit.get("errors", {}).items():
        yield Text(f"failed {_cell(count)} times: {_cell(error)}", style="yellow")
    if audit.get("left"):
        yield Text(f"{_cell(audit['left'])} not checked, for the time was up", style="yellow")


def _stale(entry: Mapping[str, Any]) -> Iterable[Text]:
    key = jsons.encode(entry.get("key")).decode()
    yield Text(f"stale: {_cell(entry.get('cache'))} {printable(key)}", style="red")
    yield Text(f"  held {_cell(entry.get('held'))}, should be {_cell(entry.get('loaded'))}")
    for stream, writers in entry.get("positions", {}).items():
        for writer, stood in writers.items():
            at_load = stood.get("at_load")
            then = "not remembered" if at_load is None else _cell(at_load)
            yield Text(
                f"  {_cell(stream)} of {_cell(writer)}: {then} when it was loaded,"
                f" {_cell(stood.get('now'))} now"
            )
    yield Text(f"  {_cell(entry.get('expected'))}")


def _cell(value: Any) -> str:
    return "-" if value is None or value == "" else printable(str(value))
