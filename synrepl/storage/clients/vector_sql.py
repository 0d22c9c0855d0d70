"""SQL of whether a vector covers a row that has the stream ID and the writer of its fact.

The statements name the row ``t``.
"""

from __future__ import annotations

from synrepl.positions.vector import PositionVector


def covered(vector: PositionVector, name: str) -> str:
    """Whether a vector covers the row.

    :param name: prefix of the parameters; see :func:`vector_params`
    """
    below = f"t.stream_id <= %({name}_linear)s"
    return f"({below} OR {_by_writer(name)})" if _ahead(vector) else below


def uncovered(vector: PositionVector, name: str) -> str:
    """Whether a vector does not cover the row."""
    above = f"t.stream_id > %({name}_linear)s"
    return f"({above} AND NOT {_by_writer(name)})" if _ahead(vector) else above


def vector_params(vector: PositionVector, name: str) -> dict[str, object]:
    """The parameters of both."""
    ahead = _ahead(vector)
    return {
        f"{name}_linear": vector.linear,
        f"{name}_writers": list(ahead),
        f"{name}_tokens": list(ahead.values()),
    }


def _ahead(vector: PositionVector) -> dict[str, int]:
    return {name: token for name, token in vector.writers.items() if token > vector.linear}


def _by_writer(name: str) -> str:
    return (
        f"EXISTS (SELECT FROM unnest(%({name}_writers)s::text[], %({name}_tokens)s::bigint[])"
        " AS w (writer, token) WHERE w.writer = t.writer AND t.stream_id <= w.token)"
    )
