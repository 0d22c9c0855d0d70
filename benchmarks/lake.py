"""A stream like ``events`` into Parquet, against Spark's own JDBC source and against COPY.

All read one table, cut into the same parts, in one session with two threads: by
Spark's JDBC source (only where its driver is: Debian's ``libpostgresql-jdbc-java``, or the jar
that ``SYNREPL_JDBC_JAR`` names), by the batch source, by the streaming source, and by
``lake land``, whose tasks write the files themselves. Rows per second of wall time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from time import perf_counter
from typing import Any

import psycopg2
from psycopg2.extensions import parse_dsn

from benchmarks.harness import Row, Scale, at_least, interleaved, ratio
from benchmarks.lake_table import filled
from synrepl.pipeline.datasource import register
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.land import Landing
from synrepl.pipeline.origin.open import open_origin
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import open_session

_ROWS = 5_000_000
_PARTS = 10
_REPETITIONS = 3

_JAR = Path(os.environ.get("SYNREPL_JDBC_JAR", "/usr/share/java/postgresql.jar"))


def run(scale: Scale) -> Iterator[Row]:
    """The ways into Parquet."""
    rows = scale.of(_ROWS)
    conf = {"spark.jars": str(_JAR)} if _JAR.exists() else {}
    with (
        filled(rows) as dsn,
        _scratch() as scratch,
        open_session(SessionOptions(master="local[2]", driver_memory="1g", conf=conf)) as spark,
    ):
        register(spark)
        ways: dict[str, Callable[[Path], object]] = {
            "COPY": lambda to: _copy(dsn),
            "batch": partial(_batch, spark, dsn, rows),
            "stream": partial(_stream, spark, dsn, rows),
            "land": partial(_land, spark, dsn),
        }
        if conf:
            ways["JDBC"] = partial(_jdbc, spark, dsn, rows)
        sides = {name: partial(_rate, way, scratch / name, rows) for name, way in ways.items()}
        found = interleaved(sides, min(_REPETITIONS, scale.repetitions))
    per_s = {"measured_in": "rows/s"}
    yield ratio("batch source into Parquet", found["batch"], found["COPY"],
                of="COPY BINARY to nowhere", bound=at_least(0.5), **per_s)  # fmt: skip
    if conf:
        yield ratio("batch source into Parquet", found["batch"], found["JDBC"],
                    of="JDBC into Parquet", bound=at_least(0.8), **per_s)  # fmt: skip
        yield ratio("streaming source into Parquet", found["stream"], found["JDBC"],
                    of="JDBC into Parquet", bound=at_least(0.6), **per_s)  # fmt: skip
        yield ratio("landing", found["land"], found["JDBC"],
                    of="JDBC into Parquet", bound=None, **per_s)  # fmt: skip
    yield ratio("streaming source into Parquet", found["stream"], found["COPY"],
                of="COPY BINARY to nowhere", bound=None, **per_s)  # fmt: skip
    yield ratio("landing", found["land"], found["COPY"],
                of="COPY BINARY to nowhere", bound=None, **per_s)  # fmt: skip


@contextmanager
def _scratch() -> Iterator[Path]:
    found = Path(mkdtemp(prefix="synrepl-benchmark-"))
    try:
        yield found
    finally:
        rmtree(found, ignore_errors=True)


def _rate(way: Callable[[Path], object], to: Path, rows: int) -> float:
    rmtree(to, ignore_errors=True)
    begun = perf_counter()
    way(to)
    return rows / (perf_counter() - begun)


def _copy(dsn: str) -> None:
    connection = psycopg2.connect(dsn)
    with connection.cursor() as cursor, open(os.devnull, "wb") as nowhere:
        cursor.copy_expert("COPY (SELECT * FROM synrepl.events) TO STDOUT (FORMAT binary)", nowhere)
    connection.close()


def _jdbc(spark: Any, dsn: str, rows: int, to: Path) -> None:
    at = parse_dsn(dsn)
    table = (
        spark.read.format("jdbc")
        .option("url", f"jdbc:postgresql://{at['host']}:{at['port']}/{at['dbname']}")
        .option("user", at["user"])
        .option("password", at.get("password", ""))
        .option("driver", "org.postgresql.Driver")
        .option("dbtable", "synrepl.events")
        .option("partitionColumn", "stream_id")
        .option("lowerBound", "1")
        .option("upperBound", str(rows))
        .option("numPartitions", str(_PARTS))
        .option("fetchsize", "10000")
        .load()
    )
    table.write.parquet(str(to))


def _batch(spark: Any, dsn: str, rows: int, to: Path) -> None:
    read = spark.read.format("synrepl").option("database", dsn).option("stream", "events")
    read.option("rows_per_partition", str(-(-rows // _PARTS))).load().write.parquet(str(to))


def _stream(spark: Any, dsn: str, rows: int, to: Path) -> None:
    read = spark.readStream.format("synrepl").option("database", dsn).option("stream", "events")
    query = (
        read.option("rows_per_partition", str(-(-rows // _PARTS)))
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(to / "checkpoint"))
        .option("path", str(to / "rows"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sum(each["numInputRows"] for each in query.recentProgress) == rows


def _land(spark: Any, dsn: str, to: Path) -> None:
    origin = open_origin(dsn, "benchmark")
    lake = Lake.begin(to, origin.server, origin.erodes)
    for _ in Landing(spark, lake, origin, dsn, round_rows=10**9).rounds(["events"]):
        pass
    origin.close()
