"""Sizes of pages, buffers and batches in the services of a process."""

from __future__ import annotations

from dataclasses import dataclass

from synrepl.core.slices import UNITS
from synrepl.services.sources import PAGE_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes and intervals that users never see.

    Simulations and tests use small ones, so that a few facts reach every limit.

    :ivar page_rows: rows read from a source, or delivered to a handler, at a time
    :ivar pages_at_a_time: pages that a master reads for its clients concurrently
    :ivar turn_units: budget of one reactor turn, see :class:`~synrepl.core.slices.Slices`
    :ivar high_water_rows: rows that may wait for handlers before a follower stops reading
    :ivar low_water_rows: waiting rows at which it resumes reading
    :ivar held_rows: rows of a stream that are buffered for the linear view; further ones are read
        from the store again
    :ivar invalidation_keys: keys of one cache in one transaction above which the whole cache is
        invalidated instead
    :ivar trim_rows: rows deleted in one transaction
    :ivar coalesce_s: seconds between two looks at a stream that has news again: commits share one
    :ivar recheck_s: seconds between two checks of a stream whose position is held up
    :ivar slow_recheck_s: the same for a stream that has been held up for longer
    """

    page_rows: int = PAGE_ROWS
    pages_at_a_time: int = 4
    turn_units: int = UNITS
    high_water_rows: int = 20_000
    low_water_rows: int = 5_000
    held_rows: int = 50_000
    invalidation_keys: int = 1_000
    trim_rows: int = 2_000
    coalesce_s: float = 0.005
    recheck_s: float = 0.02
    slow_recheck_s: float = 0.1


DEFAULT_SIZES = Sizes()
