"""What may differ between a lake's whole events and those of the database, because the database changed since.

An event is purged there, or judged again when its room is complete, or redacted by a redaction that the lake has not
searched for yet, or its state group is merged with an equal one, or its state is said by another event's, because that
one's was purged. None of it makes the lake wrong. Everything else does: the fact, the edges, the times, the verdict, the JSON,
and how large the state is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf

from synrepl.pipeline.lake.check.sums import exact_value
from synrepl.pipeline.lake.erase.redacted_events import (
    NONE_APPLIED,
    AppliedRedactions,
    RedactedEvents,
    digests_of,
)
from synrepl.pipeline.source.database.landed_states import BASE, FORM_OF_STATE
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.database.whole_events import (
    FACT_CELLS,
    FORM_CELLS,
    GROUP_CELLS,
    VERDICT_CELLS,
)

#: Digests of the columns that change together, and flags.
_DIGESTS = ("fact", "body", "form", "verdict", "state", "base")
_FLAGS = (
    "stored",
    "provisional",
    "is_redacted",
    "has_json",
    "is_late",
    "is_reworked",
    "is_lost_base",
)


class Revisions(NamedTuple):
    """What the database has changed.

    :ivar redacted: the events that were redacted after the lake searched for redactions
    :ivar reworked: IDs of rooms of which it purged events, or which it completed
    :ivar trimmed: the token up to which facts have been trimmed
    """

    redacted: AppliedRedactions = NONE_APPLIED
    reworked: Collection[str] = ()
    trimmed: int = 0


#: Nothing.
NO_REVISIONS = Revisions()


def revisable_parts(stream_schema: StreamSchema, revisions: Revisions) -> list[SparkColumn]:
    """Columns of a row by which :func:`was_purged` and :func:`was_revised` tell whether a difference is one."""
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
        "base": [BASE],
    }
    has_base = BASE in names
    was_trimmed = f.abs(BASE) <= revisions.trimmed if has_base else f.lit(False)
    # Of rooms there is no more than the ID.
    rooms = RedactedEvents(digests_of([None] * len(revisions.reworked), revisions.reworked))
    is_reworked = f.coalesce(_is_among(rooms, "room_id"), f.lit(False))
    return [
        *(_digest(stream_schema, parts[name]).alias(name) for name in _DIGESTS),
        f.coalesce("stored", f.lit(False)).alias("stored"),
        f.coalesce("partial_state", f.lit(False)).alias("provisional"),
        f.coalesce("redacted", f.lit(False)).alias("is_redacted"),
        f.col("json").isNotNull().alias("has_json"),
        _is_among(revisions.redacted.ids, "event_id").alias("is_late"),
        is_reworked.alias("is_reworked"),
        (f.coalesce(was_trimmed, f.lit(False)) | is_reworked).alias("is_lost_base"),
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
    return equal + [
        f.bool_or(here & f.col(flag)).alias(f"{side}_{flag}")
        for side, here in sides
        for flag in _FLAGS
    ]


def was_purged() -> SparkColumn:
    """Whether the database no longer has the event, and its fact is the same."""
    return f.col("same_fact") & f.col("lake_stored") & ~f.col("source_stored")


def was_revised() -> SparkColumn:
    """Whether a row differs only in what the database may have changed since.

    - the verdict and the state, where the lake has those of incomplete state, and the database no longer does
    - the numbers of the state groups
    - the event by whose state its state is said, where the database may have lost the one that the lake has
    - the form, where the redaction is newer than what the lake has searched, or may have been taken back: in a room that was
      completed, or purged, or if the lake has the verdict of incomplete state.
      What the lake has erased with a subject does not come back as the redacted form that names the subject no more
    """
    redacted = f.col("lake_is_redacted")
    was_provisional = f.col("lake_provisional")
    judged_again = was_provisional & ~f.col("source_provisional")
    may_be_taken_back = was_provisional | f.col("lake_is_reworked")
    form = (
        f.col("lake_is_late")
        | (redacted & ~f.col("source_is_redacted") & may_be_taken_back)
        | (redacted & f.col("source_is_redacted") & ~f.col("lake_has_json"))
    )
    # Changes of the same state are the same.
    other_base = ~f.col("same_base") & f.col("lake_is_lost_base")
    return (
        (f.col("same_fact") & f.col("same_body"))
        & (f.col("lake_stored") & f.col("source_stored"))
        & (f.col("same_form") | form)
        & (f.col("same_verdict") | judged_again)
        & (f.col("same_state") | judged_again | other_base)
    )


def _digest(stream_schema: StreamSchema, names: Iterable[str]) -> SparkColumn:
    by_name = {column.name: column for column in stream_schema.columns}
    values = [exact_value(by_name[name]) for name in names if name in by_name]
    # The hash skips nulls.
    parts = [part for value in values for part in (value, value.isNull())]
    return f.xxhash64(f.lit(len(parts)), *parts)
