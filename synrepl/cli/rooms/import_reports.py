"""The reports of imports of rooms, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from rich.console import RenderableType
from rich.table import Table

from synrepl.cli.rooms.reading import text
from synrepl.cli.terminal import counted, plain_table
from synrepl.services.rooms.importing.findings import ImportReport
from synrepl.services.rooms.json_lines import LinesReport

#: The counts of an import, in words.
_COUNTS = {
    "events": "events read",
    "imported": "imported",
    "outliers": "of them outliers",
    "rejected": "rejected by the rules",
    "soft_failed": "soft-failed by the source",
    "redacted": "kept by the source in redacted form only",
    "signatures": "with signatures that were checked",
    "unverified": "of servers whose keys are not known",
    "states": "states compared",
    "differing": "states that differ",
    "inherited": "of them because a state before differs",
    "groups": "further state groups compared",
    "given": "states taken from the source",
    "unjudged": "not judged, for events are missing",
    "out_of_band": "memberships of rooms that were never joined",
    "quarantined": "kept apart",
}

_UNVERIFIED = (
    "The signatures of {} were not checked: give the keys of their servers with --server-keys; if the rooms are"
    " imported already, with --retry as well."
)


def import_report_json(report: ImportReport) -> Any:
    """The report on a Synapse's rooms."""
    return {**msgspec.to_builtins(report), "equal": report.is_equal}


def import_report_parts(report: ImportReport, most: int) -> list[RenderableType]:
    """The same for the console.

    :param most: number of findings that are listed
    """
    counts = {words: getattr(report.counts, name) for name, words in _COUNTS.items()}
    parts: list[RenderableType] = [_counted({"rooms": report.rooms, **counts})]
    if report.left_out:
        table = plain_table("left out", "because")
        for room_id, reason in report.left_out.items():
            table.add_row(text(room_id), text(reason))
        parts += ["", table]
    if report.counts.findings:
        parts += ["", _counted(report.counts.findings)]
        parts += [text(each) for each in report.findings[:most]]
    if report.counts.unverified:
        parts += ["", _UNVERIFIED.format(counted(report.counts.unverified, "event"))]
    if report.is_equal:
        parts += ["", "Everything is as the source has it."]
    return parts


def file_report_json(report: LinesReport) -> Any:
    """The report on a file."""
    return msgspec.to_builtins(report)


def file_report_parts(report: LinesReport, most: int) -> list[RenderableType]:
    """The same for the console.

    :param most: number of refused lines, and of waiting events, that are listed
    """
    counts = {
        "lines": report.lines,
        "accepted": report.accepted,
        "rejected by the rules": report.rejected,
        "here before": report.known,
        "waiting for others": len(report.waiting),
        "refused, or redacted": report.refused,
    }
    parts: list[RenderableType] = [_counted(counts)]
    if report.waiting:
        parts += ["", "waiting:", *(text(each) for each in report.waiting[:most])]
    if report.refusals:
        table = plain_table("line>", "what is wrong")
        for each in report.refusals[:most]:
            table.add_row(f"{each.line:,}", text(each.reason))
        parts += ["", table]
    return parts


def _counted(counts: Mapping[str, int]) -> Table:
    """A table of counts, without those that are 0."""
    table = plain_table("", ">")
    table.show_header = False
    for name, count in counts.items():
        if count:
            table.add_row(name, f"{count:,}")
    return table
