"""``synrepl tap judge``: checks recorded traffic against the rules of the protocol."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from synrepl.cli.conventions import json_option, print_json
from synrepl.cli.terminal import interruptible, plain_table, printable, show
from synrepl.tools.judge.rules import RULES, RuleFinding, RuleSeverity
from synrepl.tools.tap.recording_judge import RecordingJudge, Tally
from synrepl.wire.dialects import DIALECTS

EXIT_BREACHES = 1


@click.command("judge")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="FILE...")
@click.option(
    "--dialect",
    type=click.Choice(list(DIALECTS)),
    help="Dialect of the recordings. Default: detected for each.",
)
@click.option(
    "--all", "everything", is_flag=True, help="Show every known fault of real servers, too."
)
@click.option("--rules", is_flag=True, help="Show the rules, and exit.")
@json_option
def command(
    files: tuple[Path, ...], dialect: str | None, everything: bool, rules: bool, as_json: bool
) -> None:
    """Check recordings against the rules of the protocol.

    Breaches are shown with their line numbers; known faults of real servers are
    counted. The exit code is 1 if there are breaches.

    With --json, each finding is an object {"file", "line", "rule", "severity",
    "detail"}; the findings of a file are followed by {"file", "dialect", "lines",
    "breaches", "known"}.
    """
    if rules:
        _show_rules(as_json)
        return
    if not files:
        raise click.UsageError("name a recording, or ask for --rules")
    breached = False
    with interruptible():
        for path in files:
            judging = RecordingJudge(path, None if dialect is None else DIALECTS[dialect])
            for finding in judging.findings():
                if as_json:
                    print_json(_finding(path, finding))
                elif everything or finding.rule.severity is RuleSeverity.BREACH:
                    rule, detail = finding.rule.name, printable(finding.detail)
                    click.echo(f"{_name(path)}:{finding.line}: {rule}: {detail}")
            if as_json:
                print_json(_summary(path, judging))
            else:
                _show_summary(path, judging)
            breached = breached or bool(judging.breaches)
    if breached:
        sys.exit(EXIT_BREACHES)


def _finding(path: Path, finding: RuleFinding) -> dict[str, Any]:
    return {
        "file": _name(path),
        "line": finding.line,
        "rule": finding.rule.name,
        "severity": finding.rule.severity.value,
        "detail": finding.detail,
    }


def _summary(path: Path, judging: RecordingJudge) -> dict[str, Any]:
    return {
        "file": _name(path),
        "dialect": judging.dialect.name,
        "lines": judging.lines,
        "breaches": {name: asdict(tally) for name, tally in judging.breaches.items()},
        "known": {name: asdict(tally) for name, tally in judging.known.items()},
    }


def _show_summary(path: Path, judging: RecordingJudge) -> None:
    count = sum(tally.count for tally in judging.breaches.values())
    verdict = "no breaches" if not count else "1 breach" if count == 1 else f"{count} breaches"
    click.echo(f"{_name(path)}: {judging.dialect.name}, {judging.lines} lines: {verdict}")
    _show_tallies("breach", judging.breaches)
    _show_tallies("known of real servers", judging.known)


def _show_tallies(kind: str, tallies: Mapping[str, Tally]) -> None:
    for name, rule in RULES.items():
        if name in tallies:
            tally = tallies[name]
            times = "once" if tally.count == 1 else f"{tally.count} times"
            where = f"{kind}: {name}, {times}, first in line {tally.first}"
            click.echo(f"  {where}: {rule.sentence}")


def _name(path: Path) -> str:
    return printable(os.fsencode(path).decode(errors="replace"))


def _show_rules(as_json: bool) -> None:
    if as_json:
        for rule in RULES.values():
            print_json(
                {
                    "rule": rule.name,
                    "severity": rule.severity.value,
                    "dialects": rule.dialects,
                    "sentence": rule.sentence,
                }
            )
        return
    table = plain_table("RULE", "SEVERITY", "DIALECTS", "SENTENCE")
    for rule in RULES.values():
        dialects = "all" if len(rule.dialects) == len(DIALECTS) else ", ".join(rule.dialects)
        table.add_row(rule.name, rule.severity.value, dialects, rule.sentence)
    show(table)
