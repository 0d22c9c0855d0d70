"""Makes the catalogue of a configuration."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from synrepl.core.errors import ConfigError, InputError, raise_all
from synrepl.daemon.config.config import Config, WorkerConfig
from synrepl.daemon.config.files import KeyPath, spelt_key
from synrepl.streams.catalogue import Catalogue, UnknownStream
from synrepl.streams.definition import Stream
from synrepl.streams.synapse import SYNAPSE_STREAMS


class BadCatalogue(ConfigError):
    """{key!r}: {reason}"""

    def __init__(self, *, key: object, reason: object, path: KeyPath = ()) -> None:
        super().__init__(key=key, reason=reason, path=path)
        self.path = path


def catalogue(config: Config) -> Catalogue:
    """The catalogue: Synapse's streams, all or some, and the declared ones.

    :raises BadCatalogue: a stream is unknown, or its declaration is not acceptable
    :raises ConfigErrors: several of these
    """
    raise_all(list(bad_streams(config)))
    return Catalogue((*_chosen(config), *(item.declare() for item in config.streams)))


def bad_streams(config: Config) -> Iterator[BadCatalogue]:
    """The errors in the streams that a configuration names or declares."""
    if isinstance(config.catalogue, tuple):
        yield from _unknown("catalogue", config.catalogue, SYNAPSE_STREAMS)
    usable = list(_chosen(config))
    for index, item in enumerate(config.streams):
        try:
            usable.append(item.declare())
            Catalogue(usable)
        except InputError as error:
            yield _bad(("streams", index), error)
            usable = [stream for stream in usable if stream.name != item.name]
    broken = {item.name for item in config.streams} - {stream.name for stream in usable}
    for name in config.stream_writers:
        yield from _unknown("stream_writers", [name], usable, broken, keyed=True)
    if isinstance(config, WorkerConfig) and config.follow != "all":
        yield from _unknown("follow", config.follow, usable, broken)


def _unknown(
    key: str,
    names: Sequence[str],
    streams: Iterable[Stream],
    broken: Collection[str] = (),
    keyed: bool = False,
) -> Iterator[BadCatalogue]:
    """The names of unknown streams, except those whose declaration is refused anyway.

    :param keyed: whether the names are keys of a map, not items of a list
    """
    known = Catalogue(streams)
    for index, name in enumerate(names):
        try:
            if name not in broken:
                known[name]
        except UnknownStream as error:
            yield _bad((key, name if keyed else index), error)


def _bad(path: KeyPath, error: InputError) -> BadCatalogue:
    return BadCatalogue(key=spelt_key(path), reason=error, path=path)


def _chosen(config: Config) -> Iterable[Stream]:
    if config.catalogue == "all":
        return SYNAPSE_STREAMS
    wanted = () if config.catalogue == "none" else config.catalogue
    return [stream for stream in SYNAPSE_STREAMS if stream.name in wanted]
