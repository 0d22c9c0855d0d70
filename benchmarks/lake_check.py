"""``python -m benchmarks lake_check``: one changed row, one missing and one double among five million.

A lake is checked as landed, and again after three random rows have been tampered with in its
files. The check has to find each of them and name its token.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from subprocess import DEVNULL
from subprocess import run as run_command
from time import perf_counter

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.harness import Row, Scale, at_least, at_most
from benchmarks.lake_table import filled, land, scratch
from synrepl.pipeline.lake.check.check import check
from synrepl.pipeline.lake.check.report import CHANGED, DOUBLED, MISSING, CheckReport
from synrepl.pipeline.lake.data_files import DataFile
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import open_session
from synrepl.pipeline.source.database.open import open_source_database

_ROWS = 5_000_000


def run(scale: Scale, seed: int | None) -> Iterator[Row]:
    """Land and check a lake, tamper with it, and check it again."""
    rows = scale.of(_ROWS)
    seed = random.randrange(10**8) if seed is None else seed
    tokens = random.Random(seed).sample(range(1, rows + 1), 3)
    with (
        filled(rows) as dsn,
        scratch() as folder,
        open_session(SessionOptions(master="local[2]")) as spark,
    ):
        begun = perf_counter()
        land(spark, dsn, folder / "lake")
        landed = perf_counter() - begun
        lake = Lake(folder / "lake")
        source = open_source_database(dsn, "benchmark")
        begun = perf_counter()
        whole = check(spark, lake, source, dsn)
        checked = perf_counter() - begun
        for token, change in zip(tokens, (_changed, _missing, _doubled), strict=True):
            _tamper(lake.table("events"), token, change)
        found = check(spark, lake, source, dsn)
        source.close()
    landing, checking = _cpu_of_small_lake()
    detail = f"{rows:,} rows; seed {seed}"
    yield Row("differences in a lake as it was landed", len(whole.problems), "", at_most(0))
    yield Row("of three rows tampered with, found and named", _named(found, tokens), "",
              at_least(3), detail=detail)  # fmt: skip
    yield Row("differences named besides", _besides(found), "", at_most(0))
    yield Row("lake check", checked / landed, "× the time of lake land",
              detail=f"{checked:.1f} against {landed:.1f} s")  # fmt: skip
    yield Row("lake check of a lake of five rows, as a command", checking / landing,
              "× the CPU time of lake land", at_most(1.0),
              detail=f"{checking:.1f} against {landing:.1f} s of CPU")  # fmt: skip


def _cpu_of_small_lake() -> tuple[float, float]:
    """CPU seconds, with all processes that they start, of landing five rows and of checking them."""
    with filled(5) as dsn, scratch() as folder:
        (folder / "dsn").touch(0o600)
        (folder / "dsn").write_text(dsn)
        return _cpu_of("land", folder), _cpu_of("check", folder)


def _cpu_of(command: str, folder: Path) -> float:
    before = getrusage(RUSAGE_CHILDREN)
    run_command(
        [sys.executable, "-m", "synrepl", "lake", command, str(folder / "lake"),
         "--database-path", str(folder / "dsn")],
        check=True, stdout=DEVNULL,
    )  # fmt: skip
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _named(report: CheckReport, tokens: list[int]) -> int:
    detail = {(each.what, each.stream_id) for each in report.streams[0].examples}
    return len(detail & set(zip((CHANGED, MISSING, DOUBLED), tokens, strict=True)))


def _besides(report: CheckReport) -> int:
    [stream] = report.streams
    found = sum(d.missing + d.only_in_lake + d.doubled + d.changed for d in stream.differences)
    return found - 3


def _changed(rows: pa.Table, here: pa.Array) -> pa.Table:
    types = pc.if_else(here, "m.room.massage", rows.column("type"))
    return rows.set_column(rows.schema.get_field_index("type"), "type", types)


def _missing(rows: pa.Table, here: pa.Array) -> pa.Table:
    return rows.filter(pc.invert(here))


def _doubled(rows: pa.Table, here: pa.Array) -> pa.Table:
    return pa.concat_tables([rows, rows.filter(here)])


def _tamper(
    table: StreamTable, token: int, change: Callable[[pa.Table, pa.Array], pa.Table]
) -> None:
    """Replace the file that contains a token by a changed one."""
    for file in table.files:
        if file.low <= token <= file.high:
            rows = pq.read_table(table.path_of(file))
            here = pc.equal(rows.column("stream_id"), token)
            if pc.any(here).as_py():
                after = change(rows, here)
                name = f"tampered-{token}.parquet"
                pq.write_table(after.cast(rows.schema), table.path / name)
                size = (table.path / name).stat().st_size
                changed = DataFile(name, size, after.num_rows, file.low, file.high)
                table.rewrite([file], [changed], change=True)
                return
    raise LookupError(f"no file has token {token}")
