"""What a process tells about its caches."""

from __future__ import annotations

from typing import Any

from synrepl.services.coherence.coherence import Coherence


def caches_status(coherence: Coherence) -> dict[str, Any]:
    """The section ``caches`` of a status, JSON-ready.

    ``by_name`` holds what each cache has counted, ``rows`` how many rows of the
    ``caches`` stream were applied by the name in them, ``unknown`` how many named
    nothing that this process has, ``bad`` how many had keys that made no sense,
    ``emptied`` how often caches were emptied because rows were lost.
    """
    return {
        "by_name": coherence.caches.stats(),
        "rows": dict(coherence.invalidations),
        "unknown": coherence.unknown,
        "bad": coherence.bad,
        "emptied": coherence.emptied,
    }
