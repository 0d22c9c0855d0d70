"""The catalogue: the streams of one process, by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from types import MappingProxyType

from synrepl.core.errors import InputError
from synrepl.streams.definition import Generation, Stream


class UnknownStream(InputError):
    """there is no stream {name!r}{hint}"""


class DuplicateStream(InputError):
    """stream {name!r} is declared twice; give one of them another name"""


class Catalogue:
    """Streams by name, in the order in which their positions are announced.

    ``Catalogue(SYNAPSE_STREAMS)`` contains those of Synapse.

    :param streams: in the order of announcement
    :raises DuplicateStream: two streams have the same name
    """

    def __init__(self, streams: Iterable[Stream]) -> None:
        by_name: dict[str, Stream] = {}
        for stream in streams:
            if stream.name in by_name:
                raise DuplicateStream(name=stream.name)
            by_name[stream.name] = stream
        self._by_name = MappingProxyType(by_name)

    def __getitem__(self, name: str) -> Stream:
        """The stream of that name.

        :raises UnknownStream: there is none; the message suggests similar names
        """
        try:
            return self._by_name[name]
        except KeyError:
            near = difflib.get_close_matches(name[:100], self._by_name, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise UnknownStream(name=name[:100], hint=hint) from None

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def known_to(self, generation: Generation) -> tuple[Stream, ...]:
        """The streams that peers of ``generation`` know, in order."""
        return tuple(stream for stream in self if generation in stream.generations)
