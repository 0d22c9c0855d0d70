"""Findings about long transactions and locked tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from synrepl.tools.doctor.report import Finding, Severity
from synrepl.tools.doctor.sessions import OpenSession
from synrepl.tools.doctor.thresholds import Thresholds


def old_transactions(
    sessions: Iterable[OpenSession],
    thresholds: Thresholds,
    streams: Callable[[OpenSession], Sequence[str]],
) -> Iterator[Finding]:
    """Find transactions that are too old.

    A transaction that is active and has written nothing, for instance a dump, blocks nobody and is
    only a note.

    :param streams: whose tables a transaction writes to or locks
    """
    for session in sessions:
        if not session.in_transaction or session.age_s is None:
            continue
        if session.age_s > thresholds.transaction_s:
            idle = session.state.startswith("idle")
            stuck = idle or session.wrote or session.waits_for
            yield Finding(
                "idle-transaction" if idle else "long-transaction",
                Severity.WARNING if stuck else Severity.NOTE,
                f"an open transaction {_holds(session, streams(session))}: {session.description}",
                f"backend {session.pid}",
                _cure(session),
            )


def locked_tables(session: OpenSession, streams: Sequence[str]) -> Iterator[Finding]:
    """Find tables that one transaction has locked against everybody.

    :param streams: the streams of these tables
    """
    if streams:
        yield Finding(
            "table-locked",
            Severity.ERROR,
            f"nobody can read or write {', '.join(session.locked)}, so neither could this:"
            f" {session.description}",
            ", ".join(streams),
            _cure(session),
        )


def _holds(session: OpenSession, streams: Sequence[str]) -> str:
    if streams:
        return f"holds {', '.join(streams)}"
    return "holds what it wrote" if session.wrote else "has written nothing"


def _cure(session: OpenSession) -> str:
    port = (session.client or "").rpartition(":")[2]
    which = f" ('ss -tnp sport = :{port}' on its machine names it)" if port else ""
    return (
        f"find out what that process waits for{which}; SELECT pg_terminate_backend({session.pid})"
        " rolls its transaction back"
    )
