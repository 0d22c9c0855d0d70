"""Report tables and a check of a Synapse's log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from interop import logs
from interop.releases import Release
from interop.report import Section, Table


def add_log_tables(section: Section, release: Release, entries: Sequence[logs.Entry]) -> None:
    """Add the errors, which all need a known reason, and other entries of the replication code."""
    errors = [entry for entry in entries if entry.is_error]
    unexplained = [entry.kind for entry in errors if entry.reason is None]
    section.check(
        f"{release} logged no error without a known reason",
        not unexplained,
        "; ".join(unexplained[:5]),
    )
    kinds = Counter((entry.kind, entry.reason or "**unknown**") for entry in errors)
    table = Table(("times", "error", "reason"), [(n, *kind) for kind, n in kinds.most_common()])
    section.tables.append((f"Errors that {release} logged:", table))
    others = Counter(
        (entry.level, entry.kind)
        for entry in entries
        if entry.about_replication and not entry.is_error and entry.level != "DEBUG"
    )
    table = Table(("times", "level", "entry"), [(n, *kind) for kind, n in others.most_common()])
    section.tables.append((f"Other entries of the replication code of {release}:", table))
