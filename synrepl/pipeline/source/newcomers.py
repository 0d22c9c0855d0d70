"""Streams that are made while a query over all of them runs."""

from __future__ import annotations

from collections.abc import Sequence

from synrepl.pipeline.source.database.shape import Shape
from synrepl.pipeline.source.errors import StreamAppeared
from synrepl.pipeline.source.layout import Layout


class Newcomers:
    """Takes in streams that fit the columns a query began with.

    :param streams: those it began with
    :param whole: all their columns
    :param read: those that are read
    """

    def __init__(self, streams: Sequence[str], whole: Layout, read: Layout) -> None:
        self._known = list(streams)
        self._columns = {column.name: column for column in read.columns}
        self._all = len(read.columns) == len(whole.columns)

    @property
    def known(self) -> Sequence[str]:
        """The streams taken in so far."""
        return tuple(self._known)

    def admit(self, shape: Shape) -> None:
        """Take in a stream, unless it is in.

        :raises StreamAppeared: rows of it would lose columns, or lack some that must be there
        """
        if shape.stream in self._known:
            return
        if (reason := self._misfit(shape)) is not None:
            raise StreamAppeared(stream=shape.stream, reason=reason)
        self._known.append(shape.stream)

    def _misfit(self, shape: Shape) -> str | None:
        has = {column.name: column for column in shape.columns}
        for column in shape.cells:
            ours = self._columns.get(column.name)
            if ours is None:
                if self._all:
                    return f"its column {column.name!r} is not among them"
            elif ours.type is not column.type:
                return f"its column {column.name!r} is {column.type}, and not {ours.type}"
        for name, ours in self._columns.items():
            nullable = name not in has or has[name].nullable
            if nullable and not ours.nullable and name != "stream":
                return f"its column {name!r} may be null"
        return None
