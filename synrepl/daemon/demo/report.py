"""The outcome of the demo as tables and sentences."""

from __future__ import annotations

from collections.abc import Iterator

import rich.console
from rich.table import Table
from rich.text import Text

from synrepl.daemon.cli.terminal import plain_table
from synrepl.daemon.demo.comparison import Compared
from synrepl.daemon.demo.outcome import Outcome
from synrepl.daemon.demo.site import MASTER
from synrepl.services.following.source import LINEAR
from synrepl.services.standing.standing import writer_label

#: Problems that are told; of more, only how many there are.
_PROBLEMS = 20


def report(outcome: Outcome) -> list[rich.console.RenderableType]:
    """The parts, for a console."""
    return [Text(), _streams(outcome), Text(), *_notes(outcome), Text(), *_verdict(outcome)]


def _streams(outcome: Outcome) -> Table:
    workers = list(outcome.counts)
    table = plain_table(
        "stream", "appended>", *(f"{name}>" for name in workers), "again>", "gaps>", "position>"
    )
    behind = {each.stream for each in outcome.behind}
    for name, stream in outcome.streams.items():
        table.add_row(
            Text(f"{name}*" if name in outcome.fleeting else name),
            Text(_number(stream.rows), _style(stream.stored)),
            *(_applied(compared) for compared in stream.workers.values()),
            Text(_number(outcome.counted("duplicates", name))),
            Text(_number(outcome.counted("gaps", name))),
            Text(_position(outcome, name), "red" if name in behind else ""),
        )
    table.add_section()
    table.add_row(
        "all",
        _number(outcome.rows),
        *(_number(_total(outcome, worker)) for worker in workers),
        _number(sum(outcome.counted("duplicates", name) for name in outcome.streams)),
        _number(sum(outcome.counted("gaps", name) for name in outcome.streams)),
        style="bold",
    )
    return table


def _notes(outcome: Outcome) -> Iterator[Text]:
    appended = outcome.appended
    fetched = sum(outcome.counted("fetched_rows", name) for name in outcome.streams)
    notes = [
        f"{_number(outcome.rows)} rows appended in {appended.seconds:.1f} s. When the master was"
        f" away, {_count(appended.again, 'request')} had to be sent again; {appended.replayed} of"
        " them had been appended, and were not doubled.",
        "again: rows that came twice, and were dropped. gaps: found, and filled with"
        f" {_number(fetched)} rows from the tables. As the workers counted, up to when they were"
        " last asked before the kill.",
    ]
    if outcome.fleeting:
        notes.append(
            "* kept in memory, so the restart emptied it: compared with what was acknowledged."
        )
    if any(None in stream.workers.values() for stream in outcome.streams.values()):
        notes.append("- is not known in the worker's dialect.")
    for note in notes:
        yield Text(note, style="dim")


def _verdict(outcome: Outcome) -> Iterator[Text]:
    problems = outcome.problems
    if not problems:
        yield Text(
            "All equal: nothing is lost, and every worker applied every row of its streams once.",
            style="bold green",
        )
        return
    yield Text(f"{_count(len(problems), 'difference')}:", style="bold red")
    for problem in problems[:_PROBLEMS]:
        yield Text(f"  {problem}")
    if len(problems) > _PROBLEMS:
        yield Text(f"  and {len(problems) - _PROBLEMS} more (--json has all of them)")


def _applied(compared: Compared | None) -> Text:
    return Text("-") if compared is None else Text(_number(compared.rows), _style(compared))


def _style(compared: Compared | None) -> str:
    return "red" if compared is not None and compared.wrong else ""


def _total(outcome: Outcome, worker: str) -> int:
    applied = [stream.workers[worker] for stream in outcome.streams.values()]
    return sum(compared.rows for compared in applied if compared is not None)


def _position(outcome: Outcome, stream: str) -> str:
    position = outcome.positions[stream][MASTER].get(writer_label(LINEAR))
    return "?" if position is None else _number(position)


def _number(number: int) -> str:
    return f"{number:,}"


def _count(number: int, what: str) -> str:
    return f"{_number(number)} {what}" + ("" if number == 1 else "s")
