"""The report, as Markdown that is readable on a terminal as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_HEAD = """\
# Real Synapse processes as peers

Made by `python -m interop --write` (or `tox -e interop -- --write`), which installs published releases
of matrix-synapse, starts them on loopback as black boxes, and ends with status 1 when anything below
does not hold. It needs CPython 3.8, 3.9 and 3.11 on `PATH`, under pyenv, or named by
`SYNREPL_INTEROP_PYTHON38`, `…39` and `…311`. `SYNREPL_INTEROP_DIR` names a directory that keeps what is
installed; everything else is made anew each time, and removed. A part can be run alone:
`python -m interop beside`."""


@dataclass(frozen=True, slots=True)
class Check:
    """A condition that must hold."""

    claim: str
    holds: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Cells under headings; columns of numbers are right-aligned."""

    headings: Sequence[str]
    rows: Sequence[Sequence[object]]

    def lines(self) -> list[str]:
        """As Markdown, with columns that line up."""
        cells = [[str(cell).replace("|", "\\|") for cell in row] for row in self.rows]
        right = [
            bool(self.rows) and all(isinstance(row[place], int) for row in self.rows)
            for place in range(len(self.headings))
        ]
        widths = [
            max(len(row[place]) for row in [list(self.headings), *cells])
            for place in range(len(self.headings))
        ]
        rules = [
            "-" * (width - 1) + ":" if flush else "-" * width
            for width, flush in zip(widths, right, strict=True)
        ]

        def line(parts: Sequence[str]) -> str:
            padded = [
                part.rjust(width) if flush else part.ljust(width)
                for part, width, flush in zip(parts, widths, right, strict=True)
            ]
            return f"| {' | '.join(padded)} |"

        return [line(self.headings), line(rules), *map(line, cells)]


@dataclass(slots=True)
class Section:
    """A section of the report: description, tables and checks."""

    title: str
    story: Sequence[str] = ()
    tables: list[tuple[str, Table]] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether all checks hold."""
        return all(check.holds for check in self.checks)

    def check(self, claim: str, holds: bool, detail: str = "") -> None:
        """Add a check."""
        self.checks.append(Check(claim, holds, detail))

    def lines(self) -> list[str]:
        """As Markdown."""
        lines = [f"## {self.title}", "", *self.story]
        for caption, table in self.tables:
            lines += ["", caption, "", *table.lines()]
        lines.append("")
        for check in self.checks:
            detail = f": {check.detail}" if check.detail else ""
            lines.append(f"- {'yes' if check.holds else '**NO**'}: {check.claim}{detail}")
        return lines


def render(facts: Mapping[str, str], sections: Sequence[Section], head: str = _HEAD) -> str:
    """The whole report.

    :param head: title and introduction
    :param facts: when, where and with what, by name
    """
    lines = [
        *head.splitlines(),
        "",
        *(f"- {name}: {value}" for name, value in facts.items()),
    ]
    for section in sections:
        lines += ["", *section.lines()]
    return "\n".join(lines) + "\n"


def difference(due: Mapping[str, int], counted: Mapping[str, int]) -> str:
    """The differences as text; "" if there are none."""
    return ", ".join(
        f"{stream} {counted.get(stream, 0)} instead of {due.get(stream, 0)}"
        for stream in sorted(due.keys() | counted.keys())
        if counted.get(stream, 0) != due.get(stream, 0)
    )


def answers_table(answers: Mapping[tuple[str, int], int]) -> Table:
    """A table of the clients' actions with the number of answers by status."""
    by_action: dict[str, list[str]] = {}
    for (action, status), count in sorted(answers.items()):
        by_action.setdefault(action, []).append(f"{count} x {status}")
    return Table(
        ("request", "answers"),
        [(action, ", ".join(counts)) for action, counts in by_action.items()],
    )
