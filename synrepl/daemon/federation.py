"""Whether sending to other servers is delegated, by a configuration."""

from __future__ import annotations

from collections.abc import Mapping

from synrepl.core.errors import Refused
from synrepl.daemon.config.config import Config
from synrepl.streams.synapse.federation import FEDERATION


class SendingNotDelegated(Refused):
    """stream 'federation' takes no facts, for nobody would send them: name the processes that send to other servers in federation_sender_instances, the same in every process"""


def refusals(config: Config) -> Mapping[str, Refused]:
    """Why streams take no facts under this configuration.

    Seed: "TCP replication, Synapse 1.43", 'Overview': "The federation stream is only
    available if federation sending has been disabled on the main process."
    """
    if config.federation_sender_instances:
        return {}
    return {FEDERATION.name: SendingNotDelegated()}
