"""``python -m tests.mutants [--list] [--group rules|store|federation] [NAME ...]``: 1 when a mutant survives, or can not be tried."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.catalogue import FEDERATION, RULES, STORE
from tests.mutants.mutant import Mutant
from tests.mutants.run import Outcome, failing_without, outcomes

#: By group: its mutants, and the file of their results.
GROUPS = {
    "rules": (RULES, Path(__file__).parent / "RESULTS.md"),
    "store": (STORE, Path(__file__).parent / "RESULTS_STORE.md"),
    "federation": (FEDERATION, Path(__file__).parent / "RESULTS_FEDERATION.md"),
}


def main(arguments: list[str]) -> int:
    """Try them and tell what caught each."""
    parser = _parser()
    options = parser.parse_args(arguments)
    groups = [options.group] if options.group else [*GROUPS]
    given = [mutant for group in groups for mutant in GROUPS[group][0]]
    chosen = [m for m in given if not options.names or _is_named(m, options.names)]
    if options.list or not chosen:
        for mutant in chosen:
            print(f"{mutant.name:40} {mutant.path:30} {mutant.drops}")
        return int(not chosen)
    if unfit := failing_without(chosen, options.jobs):
        for test, outcome in unfit.items():
            print(f"{test} fails with nothing changed: {outcome.reason}")
        return 1
    found: list[tuple[Mutant, Outcome]] = []
    for mutant, outcome in outcomes(chosen, options.jobs):
        found.append((mutant, outcome))
        if outcome.caught_by is not None:
            print(f"caught    {mutant.name}: {outcome.caught_by}", flush=True)
        elif outcome.reason:
            print(f"NOT TRIED {mutant.name}: {outcome.reason}", flush=True)
        else:
            print(f"SURVIVED  {mutant.name}: {mutant.drops}", flush=True)
    caught = sum(outcome.caught_by is not None for _, outcome in found)
    print(f"{caught} of {len(found)} caught")
    if options.write_results:
        for group in groups:
            mutants, path = GROUPS[group]
            old = path.read_text(encoding="utf-8") if path.exists() else ""
            path.write_text(results(mutants, found, old), encoding="utf-8")
    return int(caught != len(found))


def results(
    mutants: Sequence[Mutant], found: Sequence[tuple[Mutant, Outcome]], old: str = ""
) -> str:
    """``RESULTS.md``.

    :param mutants: all of the group
    :param found: the outcomes of those that were tried
    :param old: the file as it is; the rows of mutants that were not tried stay
    """
    lines = [
        "# Mutants and what caught them",
        "",
        "Made by `python -m tests.mutants --write-results`.",
        "",
        "| mutant | file | what is broken | caught by |",
        "|---|---|---|---|",
    ]
    outcomes = {mutant.name: outcome for mutant, outcome in found}
    rows = {row.split(" | ")[0].removeprefix("| "): row for row in old.splitlines()}
    for mutant in mutants:
        outcome = outcomes.get(mutant.name)
        if outcome is None:
            lines += [rows[mutant.name]] if mutant.name in rows else []
            continue
        caught = (outcome.caught_by or "nothing").removeprefix("tests.").split(" ")[0]
        caught = caught.removeprefix("rooms.")
        lines.append(f"| {mutant.name} | {mutant.path} | {mutant.drops} | {caught} |")
    return "\n".join(lines) + "\n"


def _is_named(mutant: Mutant, names: Sequence[str]) -> bool:
    return any(mutant.name.startswith(name) for name in names)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants, by how they begin")
    parser.add_argument(
        "--group", choices=[*GROUPS], help="only those of the rules, of the store, or of federation"
    )
    parser.add_argument("--list", action="store_true", help="only tell which there are")
    parser.add_argument("--jobs", "-j", type=int, default=os.cpu_count() or 1, help="at a time")
    parser.add_argument(
        "--write-results",
        action="store_true",
        help="write RESULTS.md beside this; rows of mutants that are not named stay",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
