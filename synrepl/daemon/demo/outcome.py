"""What the demo found, and what of it is not as it should be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from synrepl.core.tokens import Token
from synrepl.daemon.demo.comparison import Compared
from synrepl.daemon.demo.verification import Verified
from synrepl.daemon.demo.watched import COUNTS


class Behind(NamedTuple):
    """A worker that is not where the master is."""

    stream: str
    worker: str
    writer: str
    position: Token | None
    master: Token | None

    def __str__(self) -> str:
        return (
            f"{self.stream}, worker {self.worker}: it stands at {self.position}"
            f" of {self.writer}, the master at {self.master}"
        )


class Appended(NamedTuple):
    """How the appending went.

    :ivar seconds: from the first request to the last answer
    :ivar again: requests that were sent more than once, for the master was away
    :ivar replayed: those of them that had been appended the first time
    """

    seconds: float
    again: int
    replayed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found.

    :ivar streams: by name, those that were appended to
    :ivar fleeting: the names of those among them that are in memory
    :ivar counts: by worker, what it counted (:data:`.watched.COUNTS`), by stream
    :ivar positions: by stream, then by process, then by writer
    :ivar behind: workers that have not reached the master's position
    """

    appended: Appended
    streams: Mapping[str, Verified]
    fleeting: frozenset[str]
    counts: Mapping[str, Mapping[str, Counter[str]]]
    positions: Mapping[str, Mapping[str, Mapping[str, Token | None]]]
    behind: tuple[Behind, ...]

    @property
    def rows(self) -> int:
        """Rows appended, as acknowledged."""
        return sum(stream.rows for stream in self.streams.values())

    @property
    def problems(self) -> list[str]:
        """Everything that is not as it should be, one sentence each."""
        return [*self._differences(), *map(str, self.behind)]

    def counted(self, name: str, stream: str) -> int:
        """What all workers counted of one thing in one stream."""
        return sum(counts[name][stream] for counts in self.counts.values())

    def to_json(self) -> dict[str, Any]:
        """All of it as data."""
        return {
            "equal": not self.problems,
            "problems": self.problems,
            "rows": self.rows,
            "appending": {
                "seconds": round(self.appended.seconds, 3),
                "requests_sent_again": self.appended.again,
                "requests_replayed": self.appended.replayed,
            },
            "streams": {name: self._stream_json(name) for name in self.streams},
        }

    def _differences(self) -> Iterator[str]:
        for name, stream in self.streams.items():
            if stream.stored is not None:
                yield from _told(f"{name}, its table", stream.stored)
            for worker, compared in stream.workers.items():
                if compared is not None:
                    yield from _told(f"{name}, worker {worker}", compared)

    def _stream_json(self, name: str) -> dict[str, Any]:
        stream = self.streams[name]
        return {
            "in_memory": name in self.fleeting,
            "appended": {"facts": stream.facts, "rows": stream.rows},
            "stored": None if stream.stored is None else _compared_json(stream.stored),
            "workers": {
                worker: None
                if compared is None
                else {
                    **_compared_json(compared),
                    **{c: self.counts[worker][c][name] for c in COUNTS if c != "rows"},
                }
                for worker, compared in stream.workers.items()
            },
            "positions": self.positions[name],
        }


def _told(where: str, compared: Compared) -> Iterator[str]:
    """Sentences about differences; of many, the first ones and how many there are in all."""
    for difference in compared.differences:
        yield f"{where}: {difference}"
    told = sum(difference.facts for difference in compared.differences)
    if told < compared.wrong:
        yield f"{where}: and {compared.wrong - told:,} more facts are wrong"


def _compared_json(compared: Compared) -> dict[str, int]:
    return {"facts": compared.facts, "rows": compared.rows, "wrong_facts": compared.wrong}
