"""The console output of ``synrepl doctor database``."""

from __future__ import annotations

from collections.abc import Sequence

import rich.console
from rich.table import Table
from rich.text import Text

from synrepl.cli.terminal import plain_table, printable
from synrepl.tools.doctor.finding import Severity
from synrepl.tools.doctor.own_findings import FAILOVER
from synrepl.tools.doctor.report import ExaminationReport, StreamLine

_WORDS = {severity: severity.value for severity in Severity}
_WORDS[Severity.UNSEEN] = "not looked at"
_STYLES = {
    Severity.ERROR: "red",
    Severity.WARNING: "yellow",
    Severity.UNSEEN: "yellow",
    Severity.NOTE: "dim",
}


def parts(where: str, report: ExaminationReport) -> list[rich.console.RenderableType]:
    """A report for the console: the streams and followers, then the findings."""
    parts: list[rich.console.RenderableType] = [
        Text(f"database {printable(where)}: {report.whose}", style="bold"),
        *(Text(f"done: {printable(done)}", style="green") for done in report.done),
    ]
    if report.streams:
        parts += [Text(), _streams(report)]
    if held := _held(report):
        parts += [Text(), *held]
    if report.followers:
        parts += [Text(), _followers(report)]
    for finding in report.findings:
        head = f"{_WORDS[finding.severity]}: {finding.id} ({finding.where}): {finding.what}"
        parts += [Text(), Text(printable(head), style=_STYLES[finding.severity])]
        parts.append(Text(f"  cure: {printable(finding.cure)}"))
    if report.is_healthy:
        else_ = "else " if any(each.id == FAILOVER for each in report.findings) else ""
        parts += [Text(), Text(f"nothing {else_}is wrong in the database", style="green")]
    elif not report.has_problems:
        parts += [Text(), Text("nothing is wrong in what could be looked at", style="yellow")]
    return parts


def _streams(report: ExaminationReport) -> Table:
    lines = report.streams
    numbers: dict[str, Sequence[int | None]] = {
        "given out": [line.last for line in lines.values()],
        "in table": [line.highest for line in lines.values()],
        "linear": [line.linear for line in lines.values()],
        "trimmed": [line.trimmed for line in lines.values()],
    }
    there = {name: found for name, found in numbers.items() if set(found) != {None}}
    table = plain_table("stream", *(f"{name}>" for name in there), "writers", "held by")
    for place, (name, line) in enumerate(lines.items()):
        cells = (_cell(found[place]) for found in there.values())
        texts = (name, *cells, _writers(line), _cell(_who(line)))
        table.add_row(*(Text(printable(text)) for text in texts))
    return table


def _who(line: StreamLine) -> str | None:
    """The holder in short; its description is below the table."""
    return None if line.held_by is None else line.held_by.partition(", ")[0]


def _held(report: ExaminationReport) -> list[Text]:
    """The holders that no finding describes."""
    described = " ".join(finding.what for finding in report.findings)
    by: dict[str, list[str]] = {}
    for name, line in report.streams.items():
        if line.held_by is not None and line.held_by not in described:
            by.setdefault(line.held_by, []).append(name)
    return [Text(printable(f"{', '.join(names)} held by {holder}")) for holder, names in by.items()]


def _writers(line: StreamLine) -> str:
    positions = ", ".join(f"{name} {position}" for name, position in line.writers.items())
    return _cell(positions) + (f"; kept for {line.kept_for}" if line.kept_for else "")


def _followers(report: ExaminationReport) -> Table:
    table = plain_table("follower", "behind>", "lease ends in>")
    for name, line in report.followers.items():
        lease = "-" if line.lease_s is None else f"{line.lease_s:.0f} s"
        table.add_row(Text(printable(name)), Text(str(line.behind)), Text(lease))
    return table


def _cell(value: object) -> str:
    return "-" if value is None or value == "" else str(value)
