"""Which streams a process writes, according to its configuration."""

from __future__ import annotations

from collections.abc import Mapping

from synrepl.core.errors import ConfigError, Refused
from synrepl.daemon.config.config import Config, MasterConfig, WorkerConfig
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Stream
from synrepl.streams.synapse.federation import FEDERATION


class KeptByTheMaster(ConfigError):
    """stream_writers.{stream}: facts of {stream!r} are kept in the memory of the process that announces them, so over TCP only the master can write it, not {writer!r}; over Redis ('redis' in the configuration of both) a worker can"""


class KeptByOne(ConfigError):
    """stream_writers.{stream}: facts of {stream!r} are kept in the memory of one process, so it has one writer, not {writers}"""


class WriterNeedsDatabase(ConfigError):
    """stream_writers.{stream}: {writer!r} is this process, and a writer writes to the database; configure 'database'"""


class NobodyAnnounces(ConfigError):
    """stream_writers.{stream}: {writer!r} follows a real Synapse ('master.foreign'), which would not announce what it writes; follow a synrepl master"""


class SendingNotDelegated(Refused):
    """stream 'federation' takes no facts, for nobody would send them: name the processes that send to other servers in federation_sender_instances, the same in every process"""


def own_streams(config: Config, catalogue: Catalogue) -> list[Stream]:
    """The streams that the process writes; a worker writes only streams that name it.

    :raises KeptByTheMaster: a stream in memory has a writer that cannot announce its facts
    :raises KeptByOne: :raises WriterNeedsDatabase: :raises NobodyAnnounces:
    """
    name, named = config.instance_name, config.stream_writers
    for stream in catalogue:
        if stream.in_memory:
            _check_memory(config, stream)
    if isinstance(config, MasterConfig):
        return [stream for stream in catalogue if name in config.writers_of(stream.name)]
    own = [stream for stream in catalogue if name in named.get(stream.name, ())]
    for stream in own:
        if not config.has_database:
            raise WriterNeedsDatabase(stream=stream.name, writer=name)
        if isinstance(config, WorkerConfig) and config.master.foreign:
            raise NobodyAnnounces(stream=stream.name, writer=name)
    return own


def memory_streams_elsewhere(
    config: MasterConfig, catalogue: Catalogue
) -> list[tuple[Stream, str]]:
    """The in-memory streams that another process than the master writes, each with its writer."""
    found = []
    for stream in catalogue:
        (writer, *_) = config.writers_of(stream.name)
        if stream.in_memory and writer != config.instance_name:
            found.append((stream, writer))
    return found


def _check_memory(config: Config, stream: Stream) -> None:
    writers = config.stream_writers.get(stream.name, ())
    if len(writers) > 1:
        raise KeptByOne(stream=stream.name, writers=" and ".join(map(repr, writers)))
    if config.redis is not None:
        return
    for writer in writers:
        if (writer == config.instance_name) != isinstance(config, MasterConfig):
            raise KeptByTheMaster(stream=stream.name, writer=writer)


def refused_streams(config: Config) -> Mapping[str, Refused]:
    """The streams that take no facts under this configuration, each with the reason.

    Seed: "TCP replication, Synapse 1.43", 'Overview': "The federation stream is only
    available if federation sending has been disabled on the main process."
    """
    if config.federation_sender_instances:
        return {}
    return {FEDERATION.name: SendingNotDelegated()}
