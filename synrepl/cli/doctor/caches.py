"""``synrepl doctor caches``: audits the caches of a running process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import rich.console
from rich.text import Text

from synrepl.cli.addresses import HttpAddress, own_http
from synrepl.cli.conventions import config_option, json_option, print_json
from synrepl.cli.terminal import cell, interruptible, plain_table, printable, show
from synrepl.client.client import Client
from synrepl.core import jsons
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


#: The words for the verdicts on entries.
_VERDICTS = {
    "coherent": "coherent",
    "in_flight": "with an invalidation on its way",
    "behind": "not known, for the process was behind",
    "failed": "could not be loaded",
    "incomparable": "with values that cannot be compared",
    "incoherent": "stale",
}


def tables(counts: Mapping[str, Any], audit: Mapping[str, Any]) -> rich.console.Group:
    """Caches, verdicts and stale entries, for the console.

    :param counts: the counters of each cache, as in ``GET /caches``
    :param audit: the report
    """
    parts: list[rich.console.RenderableType] = []
    if counts:
        parts += [_caches(counts), Text()]
    parts += _verdicts(counts, audit)
    for entry in audit.get("stale", []):
        parts += [Text(), *_stale(entry)]
    return rich.console.Group(*parts)


def _caches(counts: Mapping[str, Any]) -> rich.console.RenderableType:
    columns = ("size", "hits", "misses", "evictions", "invalidations")
    table = plain_table("cache", "entries>", *(f"{name}>" for name in columns[1:]))
    for name, of_cache in counts.items():
        table.add_row(Text(cell(name)), *(Text(cell(of_cache.get(key))) for key in columns))
    return table


def _verdicts(counts: Mapping[str, Any], audit: Mapping[str, Any]) -> Iterable[Text]:
    checked = audit.get("checked", 0)
    if not checked:
        why = "every cache is empty" if counts else "no cache is open in this process"
        yield Text(f"nothing to check: {why}")
        return
    found = [f"{audit[name]} {words}" for name, words in _VERDICTS.items() if audit.get(name)]
    style = "red" if audit.get("incoherent") else "yellow" if audit.get("failed") else "green"
    entries = "1 entry" if checked == 1 else f"{checked} entries"
    yield Text(f"{entries} checked: {', '.join(found)}", style=style)
    for error, count in audit.get("errors", {}).items():
        yield Text(f"failed {cell(count)} times: {cell(error)}", style="yellow")
    if audit.get("left"):
        yield Text(f"{cell(audit['left'])} not checked, for the time was up", style="yellow")


def _stale(entry: Mapping[str, Any]) -> Iterable[Text]:
    key = jsons.encode(entry.get("key")).decode()
    yield Text(f"stale: {cell(entry.get('cache'))} {printable(key)}", style="red")
    yield Text(f"  held {cell(entry.get('held'))}, should be {cell(entry.get('loaded'))}")
    for stream, writers in entry.get("positions", {}).items():
        for writer, stood in writers.items():
            at_load = stood.get("at_load")
            then = "not remembered" if at_load is None else cell(at_load)
            yield Text(
                f"  {cell(stream)} of {cell(writer)}: {then} when it was loaded,"
                f" {cell(stood.get('now'))} now"
            )
    yield Text(f"  {cell(entry.get('expected'))}")
