"""A worker's handlers and dead letters, for ``synrepl status`` and ``synrepl dead-letters``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from synrepl.cli.terminal import cell, plain_table


def handler_tables(status: Mapping[str, Any]) -> Iterator[Table | Text]:
    """The handlers in a worker's status, their failures and their dead letters."""
    handlers = [handler for handler in status.get("handlers", ()) if isinstance(handler, Mapping)]
    if not handlers:
        return
    table = plain_table(
        "handler", "view", "exactly once", "starts at", "catching up", "failures>", "dead letters>"
    )
    for handler in handlers:
        letters = handler.get("dead_letters")
        table.add_row(
            Text(cell(handler.get("name")), style="red" if handler.get("failing") else ""),
            Text(cell(handler.get("view"))),
            Text("yes" if handler.get("exactly_once") else "no"),
            Text(starts_at(handler)),
            Text(", ".join(map(cell, handler.get("catching_up", ()))), style="yellow"),
            Text(cell(handler.get("failures"))),
            Text(cell(letters), style="yellow" if letters else ""),
        )
    yield Text()
    yield table
    for failure in status.get("failing", ()):
        yield Text(cell(failure.get("sentence")), style="red")
    yield from _newest(status.get("dead_letters"))


def dead_letter_table(letters: Iterable[Mapping[str, Any]]) -> Table:
    """A table of dead letters."""
    table = plain_table(
        "handler", "stream", "writer", "token>", "stored at", "attempts>", "error", "replay"
    )
    for letter in letters:
        table.add_row(
            *(Text(cell(letter.get(key))) for key in ("handler", "stream")),
            Text(cell(letter.get("writer")) if letter.get("writer") else "(all)"),
            *(Text(cell(letter.get(key))) for key in ("token", "set_aside_at", "attempts")),
            Text(f"{cell(letter.get('error'))}: {cell(letter.get('message'))}", style="red"),
            Text(_replay(letter)),
        )
    return table


def _replay(letter: Mapping[str, Any]) -> str:
    if letter.get("lost"):
        return "lost by a failover"
    return "requested" if letter.get("replay_requested") else ""


def starts_at(handler: Mapping[str, Any]) -> str:
    """Where a handler started, for people."""
    by_token: dict[str, list[str]] = {}
    for stream, writers in handler.get("streams", {}).items():
        for writer, at in writers.items():
            if at.get("started_from"):
                place = cell(stream) if writer == "(all)" else f"{cell(stream)} of {cell(writer)}"
                by_token.setdefault(cell(at["started_from"]), []).append(place)
    starts = [f"{token} in {_some(places)}" for token, places in by_token.items()]
    return _some(starts, "; ") or "oldest fact"


def _newest(dead_letters: Any) -> Iterator[Table | Text]:
    if not isinstance(dead_letters, Mapping) or not dead_letters.get("count"):
        return
    newest = dead_letters.get("newest", ())
    yield Text()
    yield Text(
        f"{cell(dead_letters['count'])} dead letters, the newest {len(newest)} of them:"
        if dead_letters["count"] > len(newest)
        else f"{cell(dead_letters['count'])} dead letters:",
        style="yellow",
    )
    yield dead_letter_table(newest)


def _some(texts: list[str], separator: str = ", ", most: int = 4) -> str:
    more = f"{separator}{len(texts) - most} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + more
