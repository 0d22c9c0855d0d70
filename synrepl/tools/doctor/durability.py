"""Server settings that decide which commits survive a crash or a failover, and findings about them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from synrepl.storage.database import Transaction
from synrepl.tools.doctor.report import Finding, Severity

_SETTINGS = """
    SELECT current_setting('fsync'), current_setting('full_page_writes'),
           current_setting('synchronous_commit'), current_setting('synchronous_standby_names')
"""


@dataclass(frozen=True, slots=True)
class Durability:
    """The server's durability settings.

    :ivar synchronous_commit: as set for the user and the database of this connection
    :ivar has_synchronous_standbys: whether commits can wait for standbys
    """

    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    has_synchronous_standbys: bool


def durability(txn: Transaction) -> Durability:
    """Read the settings, which every user may read."""
    fsync, full_pages, synchronous_commit, standbys = txn.execute(_SETTINGS).fetchone()
    return Durability(fsync == "on", full_pages == "on", str(synchronous_commit), bool(standbys))


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
