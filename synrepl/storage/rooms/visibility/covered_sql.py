"""SQL of whether a vector covers an event: whether whoever is there has it.

An event is covered if the token of its fact is at or below the vector's position of the fact's writer. Up to the
linear position that needs no look-up; above it, which are few events, the writer is looked up in the table of the
stream. Backfilled events have negative stream orderings, so every vector covers them.

The statements name the event ``e``.
"""

from __future__ import annotations

from synrepl.positions.vector import PositionVector

#: A vector that covers everything.
EVERYTHING = PositionVector(linear=(1 << 63) - 1)


def writers_above(vector: PositionVector) -> dict[str, int]:
    """The writers of a vector that are ahead of its linear position."""
    return {name: token for name, token in vector.writers.items() if token > vector.linear}


def covered_sql(vector: PositionVector, name: str, stream_id: str = "e.stream_id") -> str:
    """Whether a vector covers an event.

    :param name: prefix of the parameters; see :func:`covered_params`
    :param stream_id: its stream ID, as an expression
    """
    below = f"{stream_id} <= %({name}_linear)s"
    if not writers_above(vector):
        return below
    return (
        f"({stream_id} <= %({name}_highest)s AND ({below} OR EXISTS (SELECT FROM synrepl.events f"
        f" JOIN unnest(%({name}_writers)s::text[], %({name}_tokens)s::bigint[]) AS w (writer, token)"
        f" ON w.writer = f.writer WHERE f.stream_id = {stream_id} AND f.stream_id <= w.token)))"
    )


def not_covered_sql(vector: PositionVector, name: str, stream_id: str = "e.stream_id") -> str:
    """Whether a vector does not cover an event."""
    above = f"{stream_id} > %({name}_linear)s"
    if not writers_above(vector):
        return above
    return f"({above} AND NOT {covered_sql(vector, name, stream_id)})"


def covered_params(vector: PositionVector, name: str) -> dict[str, object]:
    """The parameters of :func:`covered_sql`."""
    above = writers_above(vector)
    return {
        f"{name}_linear": vector.linear,
        f"{name}_highest": vector.highest,
        f"{name}_writers": list(above),
        f"{name}_tokens": list(above.values()),
    }
