"""Which streams a source reads, and where they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from synrepl.pipeline.source.database.safe_bound import SafeBound
from synrepl.pipeline.source.database.settle import PAUSE_S, SettlementPoller, Unsettled
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.errors import MustReland
from synrepl.pipeline.source.layout import Layout, layout
from synrepl.pipeline.source.options import SourceOptions
from synrepl.pipeline.source.plan.plan import check_not_trimmed
from synrepl.positions.vector import PositionVector
from synrepl.storage.store import Trimmed


def chosen(origin: SourceDatabase, options: SourceOptions) -> Sequence[str]:
    """The streams that the options name.

    :raises NoSuchStream: one of them is not there
    """
    if options.everything:
        return origin.streams
    for stream in options.streams:
        origin.shape(stream)
    return options.streams


def layout_of(origin: SourceDatabase, options: SourceOptions) -> Layout:
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
    origin: SourceDatabase,
    look: Callable[[], Mapping[str, SafeBound]],
    wait_s: float,
    ending: Mapping[str, PositionVector],
) -> tuple[Mapping[str, SafeBound], Mapping[str, Unsettled]]:
    """Look until what is wanted is settled, but no longer than ``wait_s`` seconds.

    :param look: asks the origin
    :param ending: by stream, the end that is wanted; elsewhere it is all that there is now
    :returns: what the last look found, and the streams of which all is wanted and not all is settled
    """
    poller = SettlementPoller(look)
    give_up = time.monotonic() + wait_s
    while True:
        known = {stream: at.bound for stream, at in poller.standings.items()}
        # A real Synapse's bound is found by looking for a while; our own is there at once, and
        # what is under way there may stay so.
        left = poller.unsettled(known) if origin.is_lossy else {}
        left = {stream: each for stream, each in left.items() if stream not in ending}
        asked = [known[stream].covers(at) for stream, at in ending.items() if stream in known]
        if (all(asked) and not left) or time.monotonic() + PAUSE_S > give_up:
            return poller.standings, left
        time.sleep(PAUSE_S)
        poller.look()
