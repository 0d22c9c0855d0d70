"""Compares what was acknowledged, stored, applied and recorded in a soak test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import NamedTuple

from benchmarks.soak_recorder import read_recorded
from benchmarks.soak_site import SoakSite
from synrepl.cli.demo.deployment import MASTER, WorkerSpec
from synrepl.cli.demo.recorder import AppliedTable
from synrepl.cli.demo.traffic import Acknowledged, Traffic
from synrepl.cli.demo.verification import ComparisonResult, Verification
from synrepl.core.tokens import Range, Token
from synrepl.services.sources import LINEAR
from synrepl.services.status.stream_progress import writer_label
from synrepl.storage.database import Transaction
from synrepl.storage.followers import named_followers
from synrepl.streams.catalogue import Catalogue

#: By stream, then by writer.
Positions = Mapping[str, Mapping[str, int | None]]


class Accounts(NamedTuple):
    """The result of the audit.

    :ivar facts: number of acknowledged facts; ``rows`` likewise
    :ivar repeated: facts that a handler without transactions received again
    :ivar lost: facts that were acknowledged and that the failover lost
    :ivar problems: one sentence each
    """

    facts: int
    rows: int
    repeated: int
    lost: int
    problems: list[str]


def audit(
    txn: Transaction,
    site: SoakSite,
    catalogue: Catalogue,
    traffic: Traffic,
    acknowledged: Acknowledged,
) -> Accounts:
    """Compare what was acknowledged with the tables, and those with what each follower applied."""
    problems: list[str] = []
    repeated = 0
    lost = lost_facts(txn, catalogue, traffic, acknowledged)
    for name, path in site.recorded_files.items():
        recorded = read_recorded(path)
        repeated += recorded.repeated
        for stream, entries in recorded.entries.items():
            survivors = [each for each in entries if (stream, each.token) not in lost]
            AppliedTable(name).insert(txn, stream, survivors)
            unreported = [
                each.token
                for each in entries
                if (stream, each.token) in lost
                and not any(
                    (of, writer) == (stream, each.writer) and each.token in span
                    for of, writer, span in recorded.lost
                )
            ]
            if unreported:
                problems.append(
                    f"{stream}, account {name}: {len(unreported)} facts are lost, from token"
                    f" {unreported[0]} on, and its handler was not notified"
                )
        if recorded.changed:
            problems.append(f"{name}: {recorded.changed} facts came again with other rows")
    verification = Verification(traffic, acknowledged, site.accounts, lost)
    for name in verification.streams:
        verified = verification.verify(txn, catalogue[name])
        accounts = {"its table": verified.stored}
        accounts |= {f"account {worker}": each for worker, each in verified.workers.items()}
        for source, compared in accounts.items():
            problems += _differences(f"{name}, {source}", compared)
    for account in site.accounts:
        for name, late in AppliedTable(account.name).count_out_of_order(txn).items():
            problems.append(f"{name}, account {account.name}: {late} facts came out of order")
    facts, rows = acknowledged.facts.total(), acknowledged.rows.total()
    return Accounts(facts, rows, repeated, len(lost), problems)


def lost_facts(
    txn: Transaction, catalogue: Catalogue, traffic: Traffic, acknowledged: Acknowledged
) -> frozenset[tuple[str, Token]]:
    """Stream and token of the facts that a failover lost, by the database's own record of it.

    Tokens are given out once, so an acknowledged fact in such a range that is missing is lost.
    """
    txn.execute("SELECT stream, writer, kept, floor FROM synrepl._lost_ranges")
    ranges = {
        (stream, writer): Range(kept, floor) for stream, writer, kept, floor in txn.fetchall()
    }
    there: set[tuple[str, Token]] = set()
    for stream in {stream for stream, _ in ranges}:
        txn.execute(f'SELECT stream_id FROM synrepl."{stream}"')
        there.update((stream, catalogue[stream].stream_id(each)) for (each,) in txn.fetchall())
    answered = takewhile(lambda each: each.number in acknowledged.ids, traffic.requests())
    return frozenset(
        (request.stream, token)
        for request in answered
        for token in map(catalogue[request.stream].stream_id, acknowledged.ids[request.number])
        if token in ranges.get((request.stream, acknowledged.writers[request.number]), Range(0, 0))
        and (request.stream, token) not in there
    )


def expected_positions(
    worker: WorkerSpec, positions: Mapping[str, Positions]
) -> Iterator[tuple[str, str, Token]]:
    """The final positions expected of a worker: stream, writer (see :func:`writer_label`) and token.

    Over TCP the master says where a writer is: at its last fact. Over Redis each says it
    itself, and counts what it has settled without a fact.

    :param positions: by process, as it reported them
    """
    for stream, writers in positions[MASTER].items():
        for writer, at in writers.items():
            if (writer == writer_label(LINEAR)) is worker.is_linear:
                itself = worker.over_redis and writer in positions
                own = positions[writer][stream].get(writer) if itself else at
                yield stream, writer, own or 0


def record_deviations(
    txn: Transaction, site: SoakSite, positions: Mapping[str, Positions]
) -> list[str]:
    """Recorded positions that are behind the expected one, or beyond everything that was written.

    In between they may be: writers without facts are moved on for some moments after the last
    fact, until the processes end.

    :param positions: by process, as it reported them at the end
    """
    found = []
    written = {
        stream: max(
            (at or 0 for own in positions.values() for at in own[stream].values()), default=0
        )
        for stream in positions[MASTER]
    }
    for worker in site.workers:
        record = {
            (stream, writer_label(writer)): token
            for (stream, writer), token in named_followers.positions(txn, worker.name).items()
        }
        for stream, writer, token in expected_positions(worker, positions):
            own = record.get((stream, writer), 0)
            if not token <= own <= written[stream]:
                found.append(
                    f"{stream}, worker {worker.name}: {own} of {writer} is on record, not {token}"
                )
    return found


def _differences(where: str, compared: ComparisonResult | None) -> Iterator[str]:
    if compared is not None:
        for difference in compared.runs:
            yield f"{where}: {difference}"
