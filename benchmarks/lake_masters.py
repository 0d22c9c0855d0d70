"""``python -m benchmarks lake_masters``: five million rows landed with one thread, two, and two executors.

Each measurement starts with the first round, after the session has been opened. An executor of
``local-cluster`` is a separate process, with a JVM and a Python worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.harness import Row, Scale, interleaved, ratio
from benchmarks.lake_table import filled, land, rate, scratch
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import open_session

_ROWS = 5_000_000
_REPETITIONS = 3

_ONE, *_OTHERS = "local[1]", "local[2]", "local-cluster[2,1,1024]"


def run(scale: Scale) -> Iterator[Row]:
    """Compare each with one thread."""
    rows = scale.of(_ROWS)
    with filled(rows) as dsn, scratch() as folder:
        sides = {
            master: partial(_landed, master, dsn, rows, folder / "lake")
            for master in (_ONE, *_OTHERS)
        }
        found = interleaved(sides, min(_REPETITIONS, scale.repetitions))
    for master in _OTHERS:
        yield ratio(f"lake land on {master}", found[master], found[_ONE],
                    of=_ONE, measured_in="rows/s", bound=None)  # fmt: skip


def _landed(master: str, dsn: str, rows: int, to: Path) -> float:
    with open_session(SessionOptions(master=master)) as spark:
        return rate(partial(land, spark, dsn), to, rows)
