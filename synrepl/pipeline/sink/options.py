"""What a user says about where rows go."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from synrepl.core import names
from synrepl.core.errors import ConfigError
from synrepl.driver.blocking import PATIENCE_S

Word = TypeVar("Word", bound=StrEnum)

#: The writer that rows are appended as when none is named.
WRITER = "spark"

_KNOWN = (
    "database",
    "database_path",
    "stream",
    "writer",
    "key",
    "positions",
    "on_bad_rows",
    "patience_s",
)

#: What Spark itself puts among the options of a sink.
_SPARKS = frozenset({"checkpointlocation", "queryname", "path", "outputmode"})


class UnknownSinkOption(ConfigError):
    """the sink has no option {name!r}{hint}; its options are {known}"""


class MissingSinkOption(ConfigError):
    """the sink wants option {name!r}: {why}"""


class BadSinkOption(ConfigError):
    """option {name!r} of the sink is {value!r}; use {rule}"""


class Positions(StrEnum):
    """Where the IDs of the facts come from."""

    RESERVE = "reserve"  #: new ones, in the order of the rows
    PRESERVE = "preserve"  #: those in the columns stream_id, row_no and writer


class OnBadRows(StrEnum):
    """What to do about rows that do not fit the stream."""

    QUARANTINE = "quarantine"  #: keep them in synrepl._quarantine, and append the others
    REFUSE = "refuse"  #: append nothing


@dataclass(frozen=True, slots=True, repr=False)
class SinkOptions:
    """The options of one sink, checked. **The DSN may hold a password**, so they are never shown.

    :ivar key: a batch job that is repeated under the same key writes nothing
    :ivar patience_s: how long a database that is away is tried again, in seconds
    """

    database: str
    stream: str
    writer: str = WRITER
    key: str | None = None
    positions: Positions = Positions.RESERVE
    on_bad_rows: OnBadRows = OnBadRows.QUARANTINE
    patience_s: float = PATIENCE_S

    @property
    def preserve(self) -> bool:
        """Rows keep the IDs and writers they came with."""
        return self.positions is Positions.PRESERVE


def parse(given: Mapping[str, str]) -> SinkOptions:
    """Check what was given to ``DataFrameWriter.option``; names do not depend on case.

    :raises UnknownSinkOption: :raises MissingSinkOption: :raises BadSinkOption:
    :raises BadName: the writer's name is none
    """
    options = {name.lower(): value for name, value in given.items() if name.lower() not in _SPARKS}
    for name in options:
        if name not in _KNOWN:
            near = difflib.get_close_matches(name[:100], _KNOWN, n=1)
            raise UnknownSinkOption(
                name=name[:100],
                hint=f"; did you mean {near[0]!r}?" if near else "",
                known=", ".join(_KNOWN),
            )
    if not options.get("stream"):
        raise MissingSinkOption(name="stream", why="the stream that the rows are appended to")
    positions = _choice(options, "positions", Positions, Positions.RESERVE)
    preserve = positions is Positions.PRESERVE
    if preserve and "writer" in options:
        raise BadSinkOption(
            name="writer",
            value=options["writer"],
            rule="the column 'writer' instead, as positions are preserved",
        )
    # A fact without one of its rows, or an ID without its fact, would not be what was replayed.
    usual = OnBadRows.REFUSE if preserve else OnBadRows.QUARANTINE
    on_bad_rows = _choice(options, "on_bad_rows", OnBadRows, usual)
    if preserve and on_bad_rows is OnBadRows.QUARANTINE:
        raise BadSinkOption(
            name="on_bad_rows", value=on_bad_rows, rule="'refuse', as positions are preserved"
        )
    return SinkOptions(
        _database(options),
        options["stream"],
        names.writer_name(options.get("writer", WRITER)),
        _key(options),
        positions,
        on_bad_rows,
        _seconds(options, "patience_s", PATIENCE_S),
    )


def _database(options: Mapping[str, str]) -> str:
    given, path = options.get("database"), options.get("database_path")
    if given and path:
        raise BadSinkOption(
            name="database_path", value=path, rule="either this or 'database', not both"
        )
    if given:
        return given
    if not path:
        raise MissingSinkOption(
            name="database", why="the DSN of the database, or 'database_path', a file that holds it"
        )
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise BadSinkOption(
            name="database_path", value=path, rule=f"a file that can be read ({reason})"
        ) from None


def _key(options: Mapping[str, str]) -> str | None:
    key = options.get("key")
    if key is not None and not (0 < len(key) <= 200 and key.isprintable()):
        raise BadSinkOption(name="key", value=key[:100], rule="1 to 200 printable characters")
    return key


def _seconds(options: Mapping[str, str], name: str, usual: float) -> float:
    word = options.get(name)
    if word is None:
        return usual
    try:
        seconds = float(word)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e6:
        raise BadSinkOption(name=name, value=word[:100], rule="a number of seconds, such as 30")
    return seconds


def _choice(options: Mapping[str, str], name: str, words: type[Word], usual: Word) -> Word:
    word = options.get(name)
    if word is None:
        return usual
    try:
        return words(word.lower())
    except ValueError:
        rule = " or ".join(repr(str(each)) for each in words)
        raise BadSinkOption(name=name, value=word[:100], rule=rule) from None
