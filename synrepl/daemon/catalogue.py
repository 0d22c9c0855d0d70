"""The catalogue that a configuration asks for."""

from __future__ import annotations

from synrepl.core.errors import ConfigError, InputError
from synrepl.daemon.config import Config, DeclaredStream
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.declared import declare
from synrepl.streams.definition import Stream
from synrepl.streams.synapse import SYNAPSE_STREAMS


class BadCatalogue(ConfigError):
    """{key}: {reason}"""


def catalogue(config: Config) -> Catalogue:
    """Synapse's streams, all or some, and the declared ones.

    :raises BadCatalogue: a stream is not known, or its declaration is not acceptable
    """
    known = Catalogue(SYNAPSE_STREAMS)
    try:
        if config.catalogue == "all":
            chosen = known
        elif config.catalogue == "none":
            chosen = Catalogue(())
        else:
            wanted = {known[name].name for name in config.catalogue}
            chosen = Catalogue(stream for stream in known if stream.name in wanted)
    except InputError as error:
        raise BadCatalogue(key="catalogue", reason=error) from error
    try:
        made = Catalogue((*chosen, *map(_declared, config.streams)))
    except InputError as error:
        raise BadCatalogue(key="streams", reason=error) from error
    for name in config.stream_writers:
        try:
            made[name]
        except InputError as error:
            raise BadCatalogue(key=f"stream_writers.{name}", reason=error) from error
    return made


def _declared(item: DeclaredStream) -> Stream:
    return declare(
        item.name,
        item.columns,
        ephemeral=item.ephemeral,
        invalidates=item.invalidates,
        marks=item.marks,
    )
