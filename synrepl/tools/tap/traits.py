"""What judging needs to know of Synapse's streams, from the catalogue."""

from __future__ import annotations

from synrepl.streams.definition import numbered_together
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.tools.judge.track import StreamTraits

SYNAPSE_TRAITS = StreamTraits(
    unordered=frozenset(stream.name for stream in SYNAPSE_STREAMS if stream.unordered),
    in_memory=frozenset(stream.name for stream in SYNAPSE_STREAMS if stream.in_memory),
    shared=frozenset(numbered_together(SYNAPSE_STREAMS)),
)
