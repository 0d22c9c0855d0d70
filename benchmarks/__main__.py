"""``python -m benchmarks [NAME ...]``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from datetime import date
from importlib.metadata import version
from pathlib import Path

from benchmarks import (
    append,
    caches,
    catch_up,
    fan_out,
    federation_answers,
    federation_inbound,
    federation_served,
    group_compaction,
    health,
    lake,
    lake_check,
    lake_kills,
    lake_layouts,
    lake_masters,
    lake_memory,
    lake_places,
    lake_redactions,
    lake_source,
    lake_steady,
    lake_times,
    ledger,
    receive,
    redis,
    room_delivery,
    room_import,
    room_joins,
    room_news,
    room_polls,
    room_purge,
    room_resync,
    room_state,
    room_store,
    room_sync,
    room_visibility,
    room_workloads,
    rooms,
    rooms_on_spark,
    soak,
    synapse_joins,
    synapse_requests,
)
from benchmarks.child import REPOSITORY
from benchmarks.harness import FULL, QUICK, Row, Scale, cells, table
from benchmarks.room_shapes import run as room_shapes

BENCHMARKS: dict[str, Callable[[Scale], Iterator[Row]]] = {
    "fan_out": fan_out.run,
    "receive": receive.run,
    "ledger": ledger.run,
    "caches": caches.run,
    "rooms": rooms.run,
    "federation_answers": federation_answers.run,
    "room_import": room_import.run,
    "room_store": room_store.run,
    "room_visibility": room_visibility.run,
    "room_sync": room_sync.run,
    "room_news": room_news.run,
    "room_polls": room_polls.run,
    "room_delivery": room_delivery.run,
    "room_purge": room_purge.run,
    "room_state": room_state.run,
    "room_workloads": room_workloads.run,
    "room_joins": room_joins.run,
    "room_resync": room_resync.run,
    "group_compaction": group_compaction.run,
    "federation_inbound": federation_inbound.run,
    "federation_served": federation_served.run,
    "append": append.run,
    "catch_up": catch_up.run,
    "redis": redis.run,
    "health": health.run,
    "lake": lake.run,
    "lake_bodies": lake.run_bodies,
    "lake_source": lake_source.run,
}

#: Run only when named, because they take minutes.
LONG: dict[str, Callable[[Scale, argparse.Namespace], Iterator[Row]]] = {
    "soak": lambda scale, options: soak.run(scale, options.minutes, options.seed),
    "room_import_long": lambda scale, options: room_import.run_long(scale, options.events),
    "rooms_on_spark": lambda scale, options: rooms_on_spark.run(scale, options.events),
    "rooms_on_spark_large": lambda scale, options: rooms_on_spark.run_large(scale, options.events),
    "room_shapes": lambda scale, options: room_shapes.run(scale),
    "lake_steady": lambda scale, options: lake_steady.run(scale, options.minutes or 10.0),
    "lake_memory": lambda scale, options: lake_memory.run(scale),
    "lake_masters": lambda scale, options: lake_masters.run(scale),
    "lake_places": lambda scale, options: lake_places.run(scale),
    "lake_layouts": lambda scale, options: lake_layouts.run(scale),
    "lake_redactions": lambda scale, options: lake_redactions.run(scale),
    "lake_times": lambda scale, options: lake_times.run(scale),
    "lake_check": lambda scale, options: lake_check.run(scale, options.seed),
    "synapse_requests": lambda scale, options: synapse_requests.run(scale),
    "synapse_joins": lambda scale, options: synapse_joins.run(scale),
    "lake_kills": lambda scale, options: lake_kills.run(options.kills, options.seed),
    "lake_kills_cluster": lambda scale, options: lake_kills.run(
        options.kills, options.seed, on_cluster=True
    ),
}

_LIBRARIES = (
    "Twisted",
    "msgspec",
    "orjson",
    "psycopg2-binary",
    "cachetools",
    "pyspark",
    "pyarrow",
    "deltalake",
)


def main(arguments: list[str]) -> int:
    """Run, print and write; the exit status is 1 when a bound was missed."""
    options = _parser().parse_args(arguments)
    scale = QUICK if options.quick else FULL
    found: dict[str, list[Row]] = {}
    for name in options.names or BENCHMARKS:
        print(name, flush=True)
        found[name] = []
        long = LONG.get(name)
        for row in BENCHMARKS[name](scale) if long is None else long(scale, options):
            found[name].append(row)
            print("  " + _line(row), flush=True)
    if options.json:
        report = {"machine": machine(), "quick": options.quick, "results": _json(found)}
        options.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    if options.write_results:
        path = REPOSITORY / "benchmarks" / "RESULTS.md"
        path.write_text(updated_results(path.read_text(), found, options.names))
    return int(any(row.verdict == "MISS" for rows in found.values() for row in rows))


def machine() -> dict[str, str]:
    """The machine, the libraries and the commit."""
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
    """The content of ``RESULTS.md``."""
    parts = ["# Results", "", "Made by `python -m benchmarks --write-results`.", ""]
    parts += [f"- {name}: {text}" for name, text in machine().items()]
    for name, rows in found.items():
        parts += ["", f"## {name}", "", table(rows)]
    return "\n".join(parts) + "\n"


def updated_results(text: str, found: dict[str, list[Row]], names: Collection[str]) -> str:
    """``RESULTS.md`` after a run of ``names``, or of all but the long ones; other sections are kept."""
    head, *sections = text.split("\n## ")
    kept = {section.partition("\n")[0]: section.partition("\n")[2] for section in sections}
    if not names:
        soaked = "".join(f"\n## {name}\n{kept[name]}" for name in LONG if name in kept)
        return results(found) + soaked
    report = machine()
    for name, rows in found.items():
        kept[name] = f"\nOf {report['date']}, commit {report['commit']}.\n\n{table(rows)}\n"
    return "\n## ".join([head, *(f"{name}\n{body}" for name, body in kept.items())])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure ratios and check bounds."
    )
    long = ", ".join(LONG)
    names = ", ".join([*BENCHMARKS, f"{long} (only when named)"])
    parser.add_argument("names", nargs="*", metavar="NAME", help=names)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures to FILE as JSON"
    )
    parser.add_argument("--quick", action="store_true", help="a fifth of the work, rougher figures")
    parser.add_argument("--write-results", action="store_true", help="write benchmarks/RESULTS.md")
    parser.add_argument("--minutes", type=float, help=f"duration of {long}")
    parser.add_argument("--seed", type=int, help=f"seed of {long}")
    parser.add_argument("--events", type=int, help="events of room_import_long and rooms_on_spark")
    parser.add_argument(
        "--kills", type=int, default=200, help="number of kills of lake_kills, lake_kills_cluster"
    )
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
