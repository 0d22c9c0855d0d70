"""The streams of what clients are told besides the events of rooms, and who writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from synrepl.daemon.config.config import Config, WorkerConfig
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.synapse.account_data import ACCOUNT_DATA
from synrepl.streams.synapse.device_lists import DEVICE_LISTS
from synrepl.streams.synapse.presence import PRESENCE
from synrepl.streams.synapse.receipts import RECEIPTS
from synrepl.streams.synapse.to_device import TO_DEVICE
from synrepl.streams.synapse.typing import TYPING

#: A server has what its catalogue has a stream for.
CLIENT_STREAMS = (ACCOUNT_DATA, RECEIPTS, TYPING, PRESENCE, TO_DEVICE, DEVICE_LISTS)


def client_stream_writers(config: Config, catalogue: Catalogue) -> Mapping[str, Sequence[str]]:
    """The writers of each of these streams that this process has and follows."""
    followed = config.follow if isinstance(config, WorkerConfig) else "all"
    present = {stream.name for stream in catalogue}
    return {
        stream.name: config.writers_of(stream.name)
        for stream in CLIENT_STREAMS
        if stream.name in present and (followed == "all" or stream.name in followed)
    }
