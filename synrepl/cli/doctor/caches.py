"""``synrepl doctor caches``: audits the caches of a running process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import rich.console

from synrepl.cli.addresses import HttpAddress, own_http
from synrepl.cli.conventions import config_option, json_option, print_json
from synrepl.cli.doctor.tables import tables
from synrepl.cli.terminal import interruptible, show
from synrepl.client.client import Client
from synrepl.daemon.config.config import load
from synrepl.daemon.exit_codes import EXIT_FAILED
from synrepl.daemon.http.caches import DEFAULT_KEYS
from synrepl.tools.audit.audit import AUDIT_S, MOST_KEYS

#: Time limit of the request, in seconds: somewhat longer than that of an audit.
TIMEOUT_S = AUDIT_S + 60.0


@click.command("caches")
@config_option
@click.option(
    "--keys",
    type=click.IntRange(1, MOST_KEYS),
    default=DEFAULT_KEYS,
    show_default=True,
    help="Number of random entries to audit.",
)
@json_option
def command(config: tuple[Path, ...], keys: int, as_json: bool) -> None:
    """Compare random cache entries with freshly loaded values.

    The process of the configuration audits its caches, on request over HTTP. An entry
    that differs from its loaded value, without an invalidation in transit, is stale: it
    is dropped, and reported with the row that should have invalidated it.

    Exits with 0 if no entry was stale, and with 1 if one was, if none could be judged,
    or if the process cannot be reached.
    """
    audited = audit_caches(own_http(load(config)), keys)
    if as_json:
        print_json(audited.to_json())
    else:
        show(audited.tables())
    if not audited.healthy:
        raise click.exceptions.Exit(EXIT_FAILED)


@dataclass(frozen=True, slots=True)
class Audited:
    """The result of an audit of a process's caches.

    :ivar counts: the counters of each cache
    :ivar audit: the report
    """

    counts: Mapping[str, Any]
    audit: Mapping[str, Any]

    @property
    def healthy(self) -> bool:
        """True if no entry was stale and, if any were audited, at least one could be judged."""
        audit = self.audit
        unknown = audit.get("failed") or audit.get("behind")
        known = audit.get("coherent") or audit.get("in_flight")
        return not audit.get("stale") and bool(known or not unknown)

    def to_json(self) -> dict[str, Any]:
        """The report for programs, with the counters as ``caches``."""
        return {**self.audit, "caches": dict(self.counts)}

    def tables(self) -> rich.console.Group:
        """The report for the console."""
        return tables(self.counts, self.audit)


def audit_caches(address: HttpAddress, keys: int = DEFAULT_KEYS) -> Audited:
    """Have a process audit its caches.

    :param keys: number of entries
    :raises SynreplError: as :meth:`.Client.status`
    """
    with (
        Client(address.url, address.secret, timeout_s=TIMEOUT_S, retries=False) as client,
        interruptible(),
    ):
        counts = client.caches().get("caches")
        return Audited(counts if isinstance(counts, dict) else {}, client.audit_caches(keys))
