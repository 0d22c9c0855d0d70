"""Findings about server settings under which commits can be lost unnoticed."""

from __future__ import annotations

from collections.abc import Iterator

from synrepl.storage.durability import Durability
from synrepl.tools.doctor.report import Finding, Severity

_WHERE = "server"

_TURN_ON = (
    "set {name} = on in the server's configuration and reload it"
    " (of an embedded server: 'embedded: {{fsync: true}}' in the master's configuration)"
)


def unsafe_settings(seen: Durability) -> Iterator[Finding]:
    """Find settings that put announced commits at risk.

    ``synchronous_commit = off`` is none of them: processes and ``synrepl.append`` switch it on
    for their own transactions.
    """
    if not seen.fsync:
        yield _unsafe(
            "fsync",
            "a crash of the machine can lose commits that were announced, or damage the data",
        )
    if not seen.full_page_writes:
        yield _unsafe(
            "full_page_writes",
            "a crash of the machine can leave pages half written, and with them lose commits",
        )
    if seen.has_synchronous_standbys and seen.synchronous_commit == "local":
        yield Finding(
            "unsafe-setting",
            Severity.WARNING,
            "synchronous_commit is local although synchronous_standby_names is set: commits do not"
            " wait for a standby, so one that is promoted can lack facts that were announced",
            _WHERE,
            "set synchronous_commit = on for this user and database, or leave"
            " synchronous_standby_names empty if asynchronous replication is meant",
        )


def _unsafe(name: str, consequence: str) -> Finding:
    return Finding(
        "unsafe-setting",
        Severity.WARNING,
        f"{name} is off: {consequence}, without a new timeline, so that nothing can notice it",
        _WHERE,
        _TURN_ON.format(name=name),
    )
