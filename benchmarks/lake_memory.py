"""``python -m benchmarks lake_memory``: peak memory of landing and reading one and ten million rows.

``synrepl lake land`` and the batch source into Parquet run as separate processes. The peak
resident memory of the driver, of its JVM, and of its largest Python worker with ten million rows
is compared with that with one million. The JVM allocates all pages of its 512 MiB heap at the
start. Otherwise its size would only show how much it happened to use before it collected garbage.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import sleep

from benchmarks.child import REPOSITORY
from benchmarks.database import postgres
from benchmarks.harness import Row, Scale, at_most
from benchmarks.lake_table import fill, make, scratch
from benchmarks.process_tree import descendants, peak_mib

_WHOLE_HEAP = "-Xms512m -XX:+AlwaysPreTouch"

_FEW, _MANY = 1_000_000, 10_000_000

#: Interval of reading /proc, in seconds. /proc has the peak of running processes only, so the
#: last interval of a process that ends may be missed.
_LOOK_S = 0.2

_READ = """
import sys
from pathlib import Path
from synrepl.pipeline.datasource import register
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import open_session
conf = {"spark.driver.extraJavaOptions": sys.argv[3]}
with open_session(SessionOptions(master="local[2]", driver_memory="512m", conf=conf)) as spark:
    register(spark)
    read = spark.read.format("synrepl").option("database", sys.argv[1]).option("stream", "events")
    read.load().write.parquet(sys.argv[2])
"""


def run(scale: Scale) -> Iterator[Row]:
    """Compare the peaks with a tenth of the rows and with all of them."""
    few, many = scale.of(_FEW), scale.of(_MANY)
    with postgres() as dsn, scratch() as folder:
        make(dsn)
        fill(dsn, 1, few)
        before = _peaks(dsn, folder / "few")
        fill(dsn, few + 1, many)
        after = _peaks(dsn, folder / "many")
    for (way, kind), peak in after.items():
        small = before[way, kind]
        yield Row(
            f"{way}: {kind}",
            peak / small,
            f"× of {few:,} rows",
            at_most(1.25),
            detail=f"{peak:.0f} against {small:.0f} MiB; {many:,} rows",
        )


def _peaks(dsn: str, folder: Path) -> Mapping[tuple[str, str], float]:
    folder.mkdir()
    land = ["-m", "synrepl", "lake", "land", str(folder / "lake"), "--master", "local[2]",
            "--driver-memory", "512m", "--conf", f"spark.driver.extraJavaOptions={_WHOLE_HEAP}",
            "--stream", "events"]  # fmt: skip
    read = ["-c", _READ, dsn, str(folder / "parquet"), _WHOLE_HEAP]
    ways = {"lake land": land, "batch source": read}
    return {
        (way, kind): peak
        for way, arguments in ways.items()
        for kind, peak in _peaks_of(arguments, dsn).items()
    }


def _peaks_of(arguments: Sequence[str], dsn: str) -> dict[str, float]:
    child = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=REPOSITORY, env={**os.environ, "SYNREPL_DATABASE": dsn}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    found = {"driver": 0.0, "JVM": 0.0, "largest worker": 0.0}
    while child.poll() is None:
        jvms = descendants(child.pid, "java")
        looks = {
            "driver": [child.pid],
            "JVM": jvms,
            "largest worker": [pid for jvm in jvms for pid in descendants(jvm, "python")],
        }
        for kind, pids in looks.items():
            found[kind] = max([found[kind], *map(peak_mib, pids)])
        sleep(_LOOK_S)
    assert child.returncode == 0, f"{arguments[:4]} ended with {child.returncode}"
    return found
