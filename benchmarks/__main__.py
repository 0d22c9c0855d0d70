"""``python -m benchmarks [NAME ...]``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import date
from importlib.metadata import version
from pathlib import Path

from benchmarks import append, catch_up, fan_out, ledger, receive
from benchmarks.child import REPOSITORY
from benchmarks.harness import FULL, QUICK, Row, Scale, cells, table

BENCHMARKS: dict[str, Callable[[Scale], Iterator[Row]]] = {
    "fan_out": fan_out.run,
    "receive": receive.run,
    "ledger": ledger.run,
    "append": append.run,
    "catch_up": catch_up.run,
}

_LIBRARIES = ("Twisted", "msgspec", "orjson", "psycopg2-binary")


def main(arguments: list[str]) -> int:
    """Run, print, write; 1 when a bound was missed."""
    options = _parser().parse_args(arguments)
    scale = QUICK if options.quick else FULL
    found: dict[str, list[Row]] = {}
    for name in options.names or BENCHMARKS:
        print(name, flush=True)
        found[name] = []
        for row in BENCHMARKS[name](scale):
            found[name].append(row)
            print("  " + _line(row), flush=True)
    if options.json:
        told = {"machine": machine(), "quick": options.quick, "results": _json(found)}
        options.json.write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n")
    if options.write_results:
        (REPOSITORY / "benchmarks" / "RESULTS.md").write_text(results(found))
    return int(any(row.verdict == "MISS" for rows in found.values() for row in rows))


def machine() -> dict[str, str]:
    """Where and on what this runs."""
    info = Path("/proc/cpuinfo").read_text()
    models = [line.partition(": ")[2] for line in info.splitlines() if "model name" in line]
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": str(os.cpu_count()),
        "load average now": f"{os.getloadavg()[0]:.1f}",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        **{name: version(name) for name in _LIBRARIES},
        "commit": _commit(),
        "date": date.today().isoformat(),
    }


def results(found: dict[str, list[Row]]) -> str:
    """``RESULTS.md``."""
    parts = ["# Results", "", "Made by `python -m benchmarks --write-results`.", ""]
    parts += [f"- {name}: {text}" for name, text in machine().items()]
    for name, rows in found.items():
        parts += ["", f"## {name}", "", table(rows)]
    return "\n".join(parts) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Ratios, and bounds.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--quick", action="store_true", help="a fifth of the work, rougher figures")
    parser.add_argument("--write-results", action="store_true", help="write benchmarks/RESULTS.md")
    return parser


def _line(row: Row) -> str:
    name, figure, bound, verdict, spread, detail = cells(row)
    return f"{verdict:4}  {name:34}  {figure:>22}  {bound:6}  ({spread})  {detail}"


def _json(found: dict[str, list[Row]]) -> dict[str, list[dict[str, object]]]:
    return {name: [row.to_json() for row in rows] for name, rows in found.items()}


def _commit() -> str:
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "not a git checkout"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
