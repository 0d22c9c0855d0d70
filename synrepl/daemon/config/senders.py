"""Which processes send to other servers."""

from __future__ import annotations

from collections.abc import Sequence

from synrepl.core.errors import ConfigError
from synrepl.daemon.config.config import Config, MasterConfig, WorkerConfig
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Stream
from synrepl.streams.synapse.device_lists import DEVICE_LISTS
from synrepl.streams.synapse.events import EVENTS
from synrepl.streams.synapse.federation import FEDERATION
from synrepl.streams.synapse.presence import PRESENCE
from synrepl.streams.synapse.receipts import RECEIPTS
from synrepl.streams.synapse.to_device import TO_DEVICE
from synrepl.streams.synapse.typing import TYPING

#: The streams that a sender sends from.
SENT_STREAMS: Sequence[Stream] = (
    *(EVENTS, TYPING, RECEIPTS, PRESENCE, TO_DEVICE, DEVICE_LISTS),
    FEDERATION,
)


class SenderFollowsTooLittle(ConfigError):
    """federation_sender_instances names this process, and 'follow' leaves out {missing}, of which other servers would hear nothing: add it, or leave 'follow' out"""


def senders_of(config: Config) -> Sequence[str]:
    """The processes that send to other servers: those that are named, or else the master."""
    if config.federation_sender_instances:
        return config.federation_sender_instances
    return (config.instance_name,) if isinstance(config, MasterConfig) else ()


def is_sender(config: Config) -> bool:
    """Whether this process sends to other servers."""
    return config.instance_name in senders_of(config)


def check_sender(config: Config, catalogue: Catalogue) -> None:
    """Check that a process that sends hears of what it sends.

    :raises SenderFollowsTooLittle:
    """
    if config.rooms is None or config.rooms.federation is None or not is_sender(config):
        return
    if not isinstance(config, WorkerConfig) or config.follow == "all":
        return
    present = {stream.name for stream in catalogue}
    missing = [
        stream.name
        for stream in SENT_STREAMS
        if stream.name in present and stream.name not in config.follow
    ]
    if missing:
        raise SenderFollowsTooLittle(missing=", ".join(map(repr, missing)))
