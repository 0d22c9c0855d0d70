"""What may differ between a lake's whole events and those of the database, because the database changed since.

An event is purged there, or judged again when its room is complete, or redacted by a redaction that the lake has not
searched for yet, or its state group is merged with an equal one, or its state is said by another event's, because that
one's was purged. None of it makes the lake wrong. Everything else does: the fact, the edges, the times, the verdict, the JSON,
and how large the state is.

Whether another event's state had to be taken, and whether a redaction may have been taken back, the rows do not tell. Those
rows are doubtful: the database is asked (:mod:`~synrepl.pipeline.source.database.doubtful_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import islice
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf

from synrepl.pipeline.lake.check.sums import exact_value
from synrepl.pipeline.lake.erase.redacted_events import (
    NONE_APPLIED,
    AppliedRedactions,
    RedactedEvents,
)
from synrepl.pipeline.source.database.doubtful_rows import ROWS_AT_ONCE, DoubtfulRow
from synrepl.pipeline.source.database.landed_states import BASE, FORM_OF_STATE
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.database.whole_events import (
    FACT_CELLS,
    FORM_CELLS,
    GROUP_CELLS,
    VERDICT_CELLS,
)

#: Digests of the columns that change together, and flags.
_DIGESTS = ("fact", "body", "form", "verdict", "state")
_FLAGS = ("stored", "provisional", "is_redacted", "has_json", "is_late")


def _none_explained(rows: Sequence[DoubtfulRow]) -> Set[int]:
    return frozenset()


class Revisions(NamedTuple):
    """What the database has changed.

    :ivar redacted: the events that were redacted after the lake searched for redactions
    :ivar explained: asks for those of some rows that it may have changed, see :meth:`.SourceDatabase.explained_rows`
    """

    redacted: AppliedRedactions = NONE_APPLIED
    explained: Callable[[Sequence[DoubtfulRow]], Set[int]] = _none_explained


#: Nothing.
NO_REVISIONS = Revisions()


def revisable_parts(stream_schema: StreamSchema, revisions: Revisions) -> list[SparkColumn]:
    """Columns of a row by which :func:`was_purged`, :func:`was_revised` and :func:`is_doubtful` tell about a difference."""
    names = [cell.name for cell in stream_schema.cells]
    changing = {
        *(*FACT_CELLS, *FORM_CELLS, *VERDICT_CELLS, *GROUP_CELLS, *FORM_OF_STATE),
        "stored",
    }
    parts = {
        "fact": ("writer", *FACT_CELLS),
        "body": [name for name in names if name not in changing],
        "form": FORM_CELLS,
        "verdict": VERDICT_CELLS,
        "state": FORM_OF_STATE,
    }
    return [
        *(_digest(stream_schema, parts[name]).alias(name) for name in _DIGESTS),
        f.coalesce("stored", f.lit(False)).alias("stored"),
        f.coalesce("partial_state", f.lit(False)).alias("provisional"),
        f.coalesce("redacted", f.lit(False)).alias("is_redacted"),
        f.col("json").isNotNull().alias("has_json"),
        _is_among(revisions.redacted.ids, "event_id").alias("is_late"),
        (f.col(BASE) if BASE in names else f.lit(None).cast("long")).alias("base"),
    ]


def _is_among(digests: RedactedEvents, name: str) -> SparkColumn:
    """Whether the ID in a column is one of these; tasks have their digests, since there may be millions."""
    if not digests:
        return f.lit(False)

    def among(ids: pa.Array) -> pa.Array:
        return pa.array(digests.contain([None] * len(ids), ids.to_pylist()))

    # Spark takes the kind of function from the type hints, which its own stubs do not know.
    is_among = arrow_udf(among, "boolean")  # type: ignore[call-overload]
    column: SparkColumn = is_among(name)
    return column


def revisable_aggregates() -> list[SparkColumn]:
    """What is aggregated of these columns over the rows of both sides that are the same row."""
    equal = [(f.min(name) == f.max(name)).alias(f"same_{name}") for name in _DIGESTS]
    sides = (("lake", f.col("in_lake")), ("source", ~f.col("in_lake")))
    flags = [
        f.bool_or(here & f.col(flag)).alias(f"{side}_{flag}")
        for side, here in sides
        for flag in _FLAGS
    ]
    bases = [f.max(f.when(here, f.col("base"))).alias(f"{side}_base") for side, here in sides]
    return equal + flags + bases


def was_purged() -> SparkColumn:
    """Whether the database no longer has the event, and its fact is the same."""
    return f.col("same_fact") & f.col("lake_stored") & ~f.col("source_stored")


def was_revised() -> SparkColumn:
    """Whether a row differs only in what the database has changed since.

    - the verdict and the state, where the lake has those of incomplete state, and the database no longer does
    - the numbers of the state groups
    - the form, where the redaction is newer than what the lake has searched, or the lake has the verdict of incomplete state.
      What the lake has erased with a subject does not come back as the redacted form that names the subject no more
    """
    return _is_else_equal() & _same_form() & _same_state()


def is_doubtful() -> SparkColumn:
    """Whether a row differs in one of these, which the database may have changed, and otherwise at most as above.

    - the event by whose state its state is said. Changes of the same state are the same
    - the form, where a redaction applies in the lake, and in the database no more
    """
    return (
        _is_else_equal()
        & (_same_form() | _may_be_taken_back())
        & (_same_state() | _has_other_base())
        & ~(_same_form() & _same_state())
    )


def doubts() -> list[SparkColumn]:
    """The columns of a :class:`.DoubtfulRow`, except the stream ID."""
    return [
        f.col("lake_base"),
        f.col("source_base"),
        (~_same_state() & _has_other_base()).alias("has_other_base"),
        (~_same_form() & _may_be_taken_back()).alias("may_be_taken_back"),
    ]


def unexplained_rows(rows: DataFrame, revisions: Revisions) -> Iterator[tuple[int, int, int]]:
    """Those doubtful rows that the database cannot have changed: the number of the range, stream ID and row number.

    :param rows: doubtful rows, with the columns of :func:`doubts`
    """
    found = rows.select("range", "row_no", *DoubtfulRow._fields).toLocalIterator()
    while some := list(islice(found, ROWS_AT_ONCE)):
        explained = revisions.explained([DoubtfulRow(*row[2:]) for row in some])
        for row in some:
            if row["stream_id"] not in explained:
                yield row["range"], row["stream_id"], row["row_no"]


def _is_else_equal() -> SparkColumn:
    return (
        (f.col("same_fact") & f.col("same_body"))
        & (f.col("lake_stored") & f.col("source_stored"))
        & (f.col("same_verdict") | _judged_again())
    )


def _judged_again() -> SparkColumn:
    return f.col("lake_provisional") & ~f.col("source_provisional")


def _same_form() -> SparkColumn:
    return (
        f.col("same_form")
        | f.col("lake_is_late")
        | (_may_be_taken_back() & f.col("lake_provisional"))
        | (f.col("lake_is_redacted") & f.col("source_is_redacted") & ~f.col("lake_has_json"))
    )


def _may_be_taken_back() -> SparkColumn:
    return f.col("lake_is_redacted") & ~f.col("source_is_redacted")


def _same_state() -> SparkColumn:
    return f.col("same_state") | _judged_again()


def _has_other_base() -> SparkColumn:
    return ~f.col("lake_base").eqNullSafe(f.col("source_base"))


def _digest(stream_schema: StreamSchema, names: Iterable[str]) -> SparkColumn:
    by_name = {column.name: column for column in stream_schema.columns}
    values = [exact_value(by_name[name]) for name in names if name in by_name]
    # The hash skips nulls.
    parts = [part for value in values for part in (value, value.isNull())]
    return f.xxhash64(f.lit(len(parts)), *parts)
