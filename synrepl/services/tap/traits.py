"""What judging needs to know of Synapse's streams, from the catalogue."""

from __future__ import annotations

from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.wire.judge_track import StreamTraits

#: ``docs/protocol.md``, "Streams": one sequence gives out the IDs of each two of them.
_SHARED = frozenset({"account_data", "tag_account_data", "device_lists", "user_signature"})

SYNAPSE_TRAITS = StreamTraits(
    unordered=frozenset(stream.name for stream in SYNAPSE_STREAMS if stream.unordered),
    in_memory=frozenset(stream.name for stream in SYNAPSE_STREAMS if stream.in_memory),
    shared=_SHARED,
)
