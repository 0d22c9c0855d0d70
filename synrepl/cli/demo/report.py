"""The result of a demo run: as data, and as a table with sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import rich.console
from rich.table import Table
from rich.text import Text

from synrepl.cli.demo.lake import LakeResult
from synrepl.cli.demo.progress import COUNTERS
from synrepl.cli.demo.traffic import ORDERS
from synrepl.cli.demo.verification import ComparisonResult, StreamVerification
from synrepl.cli.terminal import bulleted, plain_table
from synrepl.core.tokens import Token

#: Streams with a line of their own by default: orders, and those with the most rows.
DEFAULT_STREAMS = 5

#: Problems that are listed; further ones are only counted.
_MAX_PROBLEMS = 20

#: What a run cannot show, whatever its result.
_NOT_COVERED = (
    "A database failover, and the loss of a disk or machine: everything ran here, on one"
    " machine. (From a checkout, python -m benchmarks soak does fail over.)",
    "Processes of a real Synapse (python -m interop), values in caches, and speed.",
)


class LaggingWorker(NamedTuple):
    """A worker whose position differs from the master's at the end of the run."""

    stream: str
    worker: str
    writer: str
    position: Token | None
    expected: Token | None

    def __str__(self) -> str:
        return (
            f"{self.stream}, worker {self.worker}: its position of writer {self.writer} is"
            f" {self.position}, the master's {self.expected}"
        )


class AppendSummary(NamedTuple):
    """The result of appending.

    :ivar seconds: time from the first request to the last response
    :ivar resent: requests that were sent more than once, because the master was down
    :ivar replayed: resent requests whose first attempt had been appended
    """

    seconds: float
    resent: int
    replayed: int


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The findings.

    :ivar streams: the comparisons, by stream
    :ivar in_memory: the streams that are kept in memory
    :ivar counters: by worker, then :data:`.progress.COUNTERS`, then stream
    :ivar out_of_order: facts applied out of order, by worker, then stream
    :ivar positions: by stream, then process, then writer
    :ivar lagging: the workers that have not reached the master's positions
    """

    appends: AppendSummary
    streams: Mapping[str, StreamVerification]
    in_memory: frozenset[str]
    counters: Mapping[str, Mapping[str, Counter[str]]]
    out_of_order: Mapping[str, Counter[str]]
    positions: Mapping[str, Mapping[str, Mapping[str, Token | None]]]
    lagging: tuple[LaggingWorker, ...]

    @property
    def rows(self) -> int:
        """The number of rows acknowledged."""
        return sum(stream.rows for stream in self.streams.values())

    @property
    def workers(self) -> list[str]:
        """The names of the workers."""
        return list(self.counters)

    @property
    def problems(self) -> list[str]:
        """Everything that is wrong, one sentence each."""
        differences = [each for stream in self.streams for each in self._differences(stream)]
        return [*differences, *map(str, self.lagging)]

    def has_problems(self, stream: str) -> bool:
        """Whether anything is wrong with a stream."""
        return any(self._differences(stream)) or any(stream == each.stream for each in self.lagging)

    def total(self, counter: str, streams: Iterable[str] | None = None) -> int:
        """The sum of a counter over all workers, for some streams or all."""
        names = self.streams if streams is None else streams
        return sum(each[counter][name] for each in self.counters.values() for name in names)

    def to_json(self) -> dict[str, Any]:
        """The result as data."""
        return {
            "equal": not self.problems,
            "problems": self.problems,
            "rows": self.rows,
            "appending": {
                "seconds": round(self.appends.seconds, 3),
                "requests_sent_again": self.appends.resent,
                "requests_replayed": self.appends.replayed,
            },
            "streams": {name: self._stream_json(name) for name in self.streams},
        }

    def _differences(self, stream: str) -> Iterator[str]:
        verification = self.streams[stream]
        yield from _mismatches(f"{stream}, its table", verification.stored)
        for worker, applied in verification.workers.items():
            yield from _mismatches(f"{stream}, worker {worker}", applied)
            if late := self.out_of_order[worker][stream]:
                yield f"{stream}, worker {worker}: {_count(late, 'fact')} applied out of order"

    def _stream_json(self, name: str) -> dict[str, Any]:
        stream = self.streams[name]
        return {
            "in_memory": name in self.in_memory,
            "appended": {"facts": stream.facts, "rows": stream.rows},
            "stored": None if stream.stored is None else _comparison_json(stream.stored),
            "workers": {
                worker: None
                if applied is None
                else {
                    **_comparison_json(applied),
                    "out_of_order_facts": self.out_of_order[worker][name],
                    **{c: self.counters[worker][c][name] for c in COUNTERS if c != "rows"},
                }
                for worker, applied in stream.workers.items()
            },
            "positions": self.positions[name],
        }


def report(result: DemoResult, show_all: bool) -> list[rich.console.RenderableType]:
    """The result for a console.

    :param show_all: whether every stream has a line of its own
    """
    caption = "Rows appended over HTTP, stored in PostgreSQL, and applied by each worker:"
    table = _table(result, show_all)
    parts: list[rich.console.RenderableType] = [Text(), Text(caption), Text(), table, Text()]
    parts += [Text(note, "dim") for note in _notes(result)]
    if problems := result.problems:
        parts += [Text(), Text(f"{_count(len(problems), 'problem')}:", "bold red")]
        parts += [Text(f"  {problem}") for problem in problems[:_MAX_PROBLEMS]]
        if len(problems) > _MAX_PROBLEMS:
            parts.append(Text(f"  and {len(problems) - _MAX_PROBLEMS} more (all with --json)"))
    return parts


def closing(
    result: DemoResult, lake: LakeResult | None, no_lake: str
) -> Iterator[rich.console.RenderableType]:
    """The verifications that were made, and those that were not.

    :param no_lake: why there is no lake, if there is none
    """
    yield Text()
    if result.problems or (lake is not None and lake.problems):
        yield Text("FAILED: there are differences, listed above.", "bold red")
    else:
        yield Text("Verified, fact by fact:", "bold green")
        yield from bulleted(
            "Every acknowledged row (except of in-memory streams) is stored exactly once, with its"
            " contents, and no other row is stored.",
            "Every worker applied every row of its streams exactly once, with its contents, in order"
            " per writer, and ended at the master's positions.",
        )
        if lake is not None:
            yield from bulleted("The lake has exactly the rows that are stored.")
    yield Text("Not verified:", "bold")
    if lake is None:
        yield from bulleted(f"The lake: {no_lake}.")
    yield from bulleted(*_NOT_COVERED)


def _table(result: DemoResult, show_all: bool) -> Table:
    workers = [f"{name}>" for name in result.workers]
    gaps = ["gaps>"] if show_all else []
    table = plain_table("stream", "appended>", "stored>", *workers, *gaps)
    shown = list(result.streams) if show_all else _default_streams(result)
    others = [name for name in result.streams if name not in shown]
    for name in shown:
        _add_line(table, result, name, [name], show_all)
    if others:
        _add_line(table, result, f"{_count(len(others), 'other')} (--all)", others, show_all)
    table.add_section()
    _add_line(table, result, "total", list(result.streams), show_all, "bold")
    return table


def _default_streams(result: DemoResult) -> list[str]:
    """The demo's own stream, those with the most rows, and those with problems."""
    by_rows = sorted(result.streams, key=lambda name: (name != ORDERS, -result.streams[name].rows))
    wrong = [name for name in by_rows[DEFAULT_STREAMS:] if result.has_problems(name)]
    return [*by_rows[:DEFAULT_STREAMS], *wrong]


def _add_line(
    table: Table,
    result: DemoResult,
    label: str,
    names: Sequence[str],
    show_all: bool,
    style: str = "",
) -> None:
    """Add a line with the sums over some streams."""
    streams = [result.streams[name] for name in names]
    gaps = [_number(result.total("gaps", names))] if show_all else []
    table.add_row(
        label,
        _number(sum(stream.rows for stream in streams)),
        _sum_cell([stream.stored for stream in streams]),
        *(_sum_cell([stream.workers[worker] for stream in streams]) for worker in result.workers),
        *gaps,
        style=style,
    )


def _sum_cell(comparisons: Sequence[ComparisonResult | None]) -> Text:
    present = [each for each in comparisons if each is not None]
    if not present:
        return Text("-")
    style = "red" if any(each.wrong for each in present) else ""
    return Text(_number(sum(each.rows for each in present)), style)


def _notes(result: DemoResult) -> Iterator[str]:
    if in_memory := sorted(result.in_memory):
        yield (
            f"{_and(in_memory)}: kept in memory, not stored; compared with what was acknowledged"
            f" ({_rows(result, in_memory)})."
        )
    unknown: dict[tuple[str, ...], list[str]] = {}
    for name, stream in result.streams.items():
        without = tuple(worker for worker, applied in stream.workers.items() if applied is None)
        if without:
            unknown.setdefault(without, []).append(name)
    for workers, names in unknown.items():
        yield f"{_and(names)}: not in the protocol of {_and(workers)} ({_rows(result, names)})."
    yield (
        f"Workers found {_count(result.total('gaps'), 'gap')} in what they received, and read"
        f" {_number(result.total('fetched_rows'))} rows from the tables to fill them; they dropped"
        f" {_count(result.total('duplicates'), 'duplicate')}."
    )
    resent = result.appends.resent
    yield (
        f"Appending took {result.appends.seconds:.1f} s. While the master was down,"
        f" {_count(resent, 'request')} had to be sent again ({result.appends.replayed} already"
        " appended; none was appended twice)."
    )


def _mismatches(where: str, comparison: ComparisonResult | None) -> Iterator[str]:
    if comparison is None:
        return
    yield from (f"{where}: {run}" for run in comparison.runs)
    listed = sum(run.facts for run in comparison.runs)
    if listed < comparison.wrong:
        yield f"{where}: and {comparison.wrong - listed:,} more facts are wrong"


def _comparison_json(comparison: ComparisonResult) -> dict[str, int]:
    return {
        "facts": comparison.facts,
        "rows": comparison.rows,
        "wrong_facts": comparison.wrong,
    }


def _rows(result: DemoResult, names: Iterable[str]) -> str:
    return _count(sum(result.streams[name].rows for name in names), "row")


def _number(number: int) -> str:
    return f"{number:,}"


def _count(number: int, noun: str) -> str:
    return f"{_number(number)} {noun}" + ("" if number == 1 else "s")


def _and(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
