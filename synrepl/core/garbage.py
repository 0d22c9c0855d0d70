"""Settings of Python's garbage collector for processes that work in large batches."""

from __future__ import annotations

import gc

#: Objects that are made before the youngest generation is collected. Python's default is 700, so that a batch of
#: some hundred events is looked through dozens of times while nearly all of its objects are in use.
_BATCH_OBJECTS = 50_000


def collect_after_batches() -> None:
    """Collect garbage less often, and never look at what the start of the process has made.

    Memory grows by what :data:`_BATCH_OBJECTS` objects take. Call it once, before the work begins.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_BATCH_OBJECTS)
