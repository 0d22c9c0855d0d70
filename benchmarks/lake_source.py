"""The batch source into nowhere against Spark's own JDBC source into nowhere: all rows, one column, some IDs.

Nowhere is Spark's format ``noop``, which drops the rows, so that only the sources differ. Both read
one table, divided into the same partitions, in one session with two threads. JDBC prunes columns
and pushes filters by itself; the source does so by its options ``columns`` and ``where``. Wants the
JDBC driver, as ``lake`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any

from benchmarks.harness import Bound, Row, Scale, at_least, at_most, interleaved, ratio
from benchmarks.lake import jdbc_jar, jdbc_rows, source_reader
from benchmarks.lake_table import filled
from synrepl.pipeline.datasource import register
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import open_session

_ROWS = 2_000_000
_REPETITIONS = 5


def run(scale: Scale) -> Iterator[Row]:
    """Measure short rows, then long ones."""
    jar = jdbc_jar()
    if jar is None:
        raise SystemExit("install libpostgresql-jdbc-java, or set SYNREPL_JDBC_JAR")
    options = SessionOptions(master="local[2]", driver_memory="1g", conf={"spark.jars": str(jar)})
    with open_session(options) as spark:
        register(spark)
        for stream in "events", "bodies":
            yield from _ways(spark, stream, scale)


def _ways(spark: Any, stream: str, scale: Scale) -> Iterator[Row]:
    rows = scale.of(_ROWS)
    with filled(rows, stream) as dsn:
        jdbc = partial(jdbc_rows, spark, dsn, stream, rows)
        ours = partial(source_reader, spark, dsn, stream, rows)
        listed = [*range(1, rows + 1, max(1, rows // 100))][:101]
        where = f"stream_id IN ({', '.join(map(str, listed))})"
        ways: dict[str, Callable[[], Any]] = {
            "all": lambda: ours().load(),
            "all, JDBC": jdbc,
            "column": lambda: ours().option("columns", "event_id").load(),
            "column, JDBC": lambda: jdbc().select("event_id"),
            "IDs": lambda: ours().option("where", where).load(),
            "IDs, JDBC": lambda: jdbc().where(where),
        }
        found = interleaved(
            {name: partial(_seconds, way) for name, way in ways.items()},
            min(_REPETITIONS, scale.repetitions),
        )
    for way, bound in ("all", at_least(0.9)), ("column", at_most(1.5)), ("IDs", at_most(1.5)):
        yield _compared(f"{stream}: {way}", found[way], found[f"{way}, JDBC"], rows, bound)


def _compared(name: str, ours: list[float], jdbc: list[float], rows: int, bound: Bound) -> Row:
    """Rates where more is better, times where less is."""
    if bound.at_least:
        ours, jdbc = ([rows / each for each in side] for side in (ours, jdbc))
    unit = "rows/s" if bound.at_least else "s"
    return ratio(name, ours, jdbc, of="JDBC into nowhere", measured_in=unit, bound=bound)


def _seconds(way: Callable[[], Any]) -> float:
    """Wall time from the definition of a DataFrame to its last row."""
    begun = perf_counter()
    way().write.format("noop").mode("append").save()
    return perf_counter() - begun
