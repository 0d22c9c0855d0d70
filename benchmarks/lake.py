"""A stream of short rows, or one of long ones, into Parquet, against Spark's own JDBC source and against COPY.

All of them read one table, divided into the same partitions, in one session with two threads:
Spark's JDBC source (only if its driver is installed: Debian's ``libpostgresql-jdbc-java``, or the
jar that ``SYNREPL_JDBC_JAR`` names), the batch source, the streaming source, and ``lake land``,
whose tasks write the files themselves. Two more measurements separate the cost of the source from
Spark's: the batch source without a sink, and the same rows from Parquet into Parquet, which no
source into Spark's Parquet can outrun. All figures are rows per second of wall time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2.extensions import parse_dsn

from benchmarks.harness import Row, Scale, at_least, interleaved, ratio
from benchmarks.lake_table import filled, land, rate, scratch
from synrepl.pipeline.datasource import register
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import open_session

_ROWS = 5_000_000
_PARTS = 10
_REPETITIONS = 5

_JAR = Path(os.environ.get("SYNREPL_JDBC_JAR", "/usr/share/java/postgresql.jar"))


def jdbc_jar() -> Path | None:
    """The driver of JDBC, if it is installed."""
    return _JAR if _JAR.exists() else None


def run(scale: Scale) -> Iterator[Row]:
    """Measure short rows."""
    return _measured("events", scale)


def run_bodies(scale: Scale) -> Iterator[Row]:
    """Measure long rows."""
    return _measured("bodies", scale)


def _measured(stream: str, scale: Scale) -> Iterator[Row]:
    jar = jdbc_jar()
    conf = {} if jar is None else {"spark.jars": str(jar)}
    options = SessionOptions(master="local[2]", driver_memory="1g", conf=conf)
    with open_session(options) as spark:
        register(spark)
        yield from _ways(spark, stream, scale, bool(conf))


def _ways(spark: Any, stream: str, scale: Scale, with_jdbc: bool) -> Iterator[Row]:
    rows = scale.of(_ROWS)
    with filled(rows, stream) as dsn, scratch() as folder:
        ways: dict[str, Callable[[Path], object]] = {
            "COPY": lambda to: _copy(dsn, stream),
            "batch": partial(_batch, spark, dsn, stream, rows),
            "stream": partial(_stream, spark, dsn, stream, rows),
            "land": partial(land, spark, dsn, stream=stream),
            "source": lambda to: (
                _read(spark, dsn, stream, rows).write.format("noop").mode("append").save()
            ),
        }
        # The cost of Spark's sink alone, with the cheapest possible source.
        ways["Parquet"] = lambda to: spark.read.parquet(str(folder / "batch")).write.parquet(
            str(to)
        )
        if with_jdbc:
            ways["JDBC"] = partial(_jdbc, spark, dsn, stream, rows)
        sides = {name: partial(rate, way, folder / name, rows) for name, way in ways.items()}
        found = interleaved(sides, min(_REPETITIONS, scale.repetitions))
    bounds = {
        ("batch", "COPY"): at_least(0.5),
        ("land", "COPY"): at_least(0.5),
        ("batch", "JDBC"): at_least(1.0),
        ("stream", "JDBC"): at_least(0.8),
    }
    others = {"COPY": "COPY BINARY to nowhere", "JDBC": "JDBC into Parquet"}
    names = {
        "batch": "batch source",
        "stream": "streaming source",
        "land": "lake land",
        "source": "batch source into nowhere",
        "JDBC": "JDBC",
        "Parquet": "Parquet into Parquet",
    }
    for other, of in others.items():
        for way, name in names.items():
            if way != other and {way, other} <= found.keys():
                yield ratio(
                    f"{stream}: {name}",
                    found[way],
                    found[other],
                    of=of,
                    measured_in="rows/s",
                    bound=bounds.get((way, other)),
                )


def _copy(dsn: str, stream: str) -> None:
    connection = psycopg2.connect(dsn)
    with connection.cursor() as cursor, open(os.devnull, "wb") as nowhere:
        sql = f"COPY (SELECT * FROM synrepl.{stream}) TO STDOUT (FORMAT binary)"
        cursor.copy_expert(sql, nowhere)
    connection.close()


def _jdbc(spark: Any, dsn: str, stream: str, rows: int, to: Path) -> None:
    jdbc_rows(spark, dsn, stream, rows).write.parquet(str(to))


def jdbc_rows(spark: Any, dsn: str, stream: str, rows: int) -> Any:
    """The rows of a stream's table by Spark's JDBC source, as a DataFrame."""
    at = parse_dsn(dsn)
    return (
        spark.read.format("jdbc")
        .option("url", f"jdbc:postgresql://{at['host']}:{at['port']}/{at['dbname']}")
        .option("user", at["user"])
        .option("password", at.get("password", ""))
        .option("driver", "org.postgresql.Driver")
        .option("dbtable", f"synrepl.{stream}")
        .option("partitionColumn", "stream_id")
        .option("lowerBound", "1")
        .option("upperBound", str(rows))
        .option("numPartitions", str(_PARTS))
        .option("fetchsize", "10000")
        .load()
    )


def _batch(spark: Any, dsn: str, stream: str, rows: int, to: Path) -> None:
    _read(spark, dsn, stream, rows).write.parquet(str(to))


def _read(spark: Any, dsn: str, stream: str, rows: int) -> Any:
    return source_reader(spark, dsn, stream, rows).load()


def source_reader(spark: Any, dsn: str, stream: str, rows: int) -> Any:
    """A reader of a stream by the batch source, before its ``load()``."""
    read = spark.read.format("synrepl").option("database", dsn).option("stream", stream)
    return read.option("rows_per_partition", str(-(-rows // _PARTS)))


def _stream(spark: Any, dsn: str, stream: str, rows: int, to: Path) -> None:
    read = spark.readStream.format("synrepl").option("database", dsn).option("stream", stream)
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
