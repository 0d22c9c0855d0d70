"""Which streams a source reads, and where they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from synrepl.pipeline.origin.origin import Origin
from synrepl.pipeline.origin.standing import Standing
from synrepl.pipeline.plan.plan import check_not_trimmed
from synrepl.pipeline.source.errors import MustReland
from synrepl.pipeline.source.layout import Layout, layout
from synrepl.pipeline.source.options import SourceOptions
from synrepl.positions.vector import PositionVector
from synrepl.storage.store import Trimmed

#: Seconds between two looks at what is not settled.
_PAUSE_S = 0.25


def chosen(origin: Origin, options: SourceOptions) -> Sequence[str]:
    """The streams that the options name.

    :raises NoSuchStream: one of them is not there
    """
    if options.everything:
        return origin.streams
    for stream in options.streams:
        origin.shape(stream)
    return options.streams


def layout_of(origin: Origin, options: SourceOptions) -> Layout:
    """The columns of these streams together, as far as they are wanted.

    :raises NoSuchStream: :raises ColumnsDisagree: :raises StreamColumnTaken: :raises NoSuchColumn:
    """
    shapes = [origin.shape(stream) for stream in chosen(origin, options)]
    return layout(shapes, options.several, options.columns)


def not_trimmed(stream: str, start: PositionVector, trimmed: int) -> None:
    """Refuse a start from which facts are gone.

    :raises MustReland: some that were to come next are
    """
    try:
        check_not_trimmed(stream, start, trimmed)
    except Trimmed as error:
        raise MustReland(**error.facts) from None


def settled(
    origin: Origin,
    look: Callable[[], Mapping[str, Standing]],
    wait_s: float,
    ending: Mapping[str, PositionVector],
) -> Mapping[str, Standing]:
    """Look until what is wanted is settled, but no longer than ``wait_s`` seconds.

    :param look: asks the origin
    :param ending: by stream, the end that is wanted; elsewhere it is all there is
    """
    give_up = time.monotonic() + wait_s
    while True:
        standings = look()
        waits = any(
            not at.bound.covers(ending[stream])
            if stream in ending
            # A real Synapse's bound is found by looking for a while; our own is there at
            # once, and what is under way there may stay so.
            else origin.erodes and not at.complete
            for stream, at in standings.items()
        )
        if not waits or time.monotonic() + _PAUSE_S > give_up:
            return standings
        time.sleep(_PAUSE_S)
