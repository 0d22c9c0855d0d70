"""What a user writes after ``.option(``, checked."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from synrepl.core.errors import ConfigError
from synrepl.core.names import BadName, follower_name
from synrepl.driver.blocking import PATIENCE_S
from synrepl.pipeline.plan.plan import CHUNK_ROWS
from synrepl.pipeline.source.place import Place, parse_place

T = TypeVar("T", int, float)

#: For how long facts are kept for a follower that does not come, in seconds.
LEASE_S = 86_400.0

#: How long a read with an end waits for what is under way, where that takes time, in seconds.
SETTLE_WAIT_S = 10.0

_BATCH = ("ending", "push_filters")
_STREAM = ("max_rows_per_batch", "follower", "follower_lease_s")
_BOTH = (
    "database",
    "database_path",
    "stream",
    "columns",
    "starting",
    "rows_per_partition",
    "patience_s",
    "settle_wait_s",
)

#: Of a stream option: all that there are, also those that come later.
ALL = "*"


class UnknownOption(ConfigError):
    """the synrepl source has no option {option!r}{hint}; it has {known}"""


class OptionMissing(ConfigError):
    """the synrepl source wants the option {option}: {what}"""


class BadOption(ConfigError):
    """option {option} of the synrepl source is {value!r}; it has to be {wanted}"""


class OptionElsewhere(ConfigError):
    """option {option} of the synrepl source is for {there}, and this is {here}; leave it out"""


class NoDsnFile(ConfigError):
    """the file of option database_path, {path}, cannot be read: {reason}"""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one source, read and checked. Pickled, for tasks elsewhere.

    :ivar dsn: where the database is; it may hold a password
    :ivar streams: the names asked for, or :data:`ALL` alone
    :ivar columns: which columns are wanted; None for all
    :ivar starting: where to begin
    :ivar ending: where a batch ends; None for what is settled
    :ivar push_filters: have the database apply filters, see :class:`.batch.FilteringReader`
    :ivar max_rows: at most about so many rows in a micro-batch; None for no limit
    :ivar chunk_rows: about how many rows a task reads
    :ivar follower: under which name processed positions are acknowledged
    :ivar lease_s: how long facts are kept for the follower, in seconds
    :ivar patience_s: how long a database that is away is tried again, in seconds
    :ivar settle_wait_s: how long a read with an end waits for what is under way, in seconds
    """

    dsn: str = field(repr=False)
    streams: tuple[str, ...]
    columns: tuple[str, ...] | None
    starting: Place
    ending: Place | None
    push_filters: bool
    max_rows: int | None
    chunk_rows: int
    follower: str | None
    lease_s: float
    patience_s: float
    settle_wait_s: float

    @property
    def everything(self) -> bool:
        """True for all streams, also those that are made later."""
        return self.streams == (ALL,)

    @property
    def several(self) -> bool:
        """True when rows are to tell which stream they are of."""
        return self.everything or len(self.streams) > 1


def parse(options: Mapping[str, str], streaming: bool | None = None) -> SourceOptions:
    """Read options as Spark hands them over: keys in any case, values as text.

    :param streaming: for which use they are; None when that is not known yet
    :raises UnknownOption: :raises OptionMissing: :raises BadOption: :raises OptionElsewhere:
    :raises NoDsnFile: :raises BadPlace:
    """
    given = {key.lower(): value for key, value in options.items()}
    _check_names(given, streaming)
    ending = given.get("ending", "").strip()
    return SourceOptions(
        dsn=_dsn(given),
        streams=_streams(given),
        columns=_names("columns", given["columns"]) if "columns" in given else None,
        starting=parse_place("starting", given.get("starting", "earliest")),
        ending=parse_place("ending", ending) if ending else None,
        push_filters=_flag(given, "push_filters"),
        max_rows=_count(given, "max_rows_per_batch", None),
        chunk_rows=_count(given, "rows_per_partition", CHUNK_ROWS) or CHUNK_ROWS,
        follower=_follower(given.get("follower")),
        lease_s=_seconds(given, "follower_lease_s", LEASE_S),
        patience_s=_seconds(given, "patience_s", PATIENCE_S),
        settle_wait_s=_seconds(given, "settle_wait_s", SETTLE_WAIT_S),
    )


def _check_names(given: Mapping[str, str], streaming: bool | None) -> None:
    known = (*_BOTH, *_BATCH, *_STREAM)
    for option in sorted(given.keys() - set(known)):
        near = difflib.get_close_matches(option[:100], known, n=1)
        raise UnknownOption(
            option=option[:100],
            hint=f"; did you mean {near[0]}?" if near else "",
            known=", ".join(sorted(known)),
        )
    if streaming is None:
        return
    reads = ("batch reads (spark.read)", "streaming reads (spark.readStream)")
    here, there = reads[streaming], reads[not streaming]
    for option in sorted(given.keys() & set(_BATCH if streaming else _STREAM)):
        raise OptionElsewhere(option=option, there=there, here=f"one of the {here}")


def _dsn(given: Mapping[str, str]) -> str:
    path = given.get("database_path", "").strip()
    dsn = given.get("database", "").strip()
    if path and dsn:
        raise BadOption(
            option="database_path", value=path, wanted="left out when there is a database"
        )
    if dsn:
        return dsn
    if not path:
        raise OptionMissing(
            option="database", what="a DSN, or the option database_path: a file that has it"
        )
    try:
        found = Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise NoDsnFile(path=path, reason=error.strerror or error) from None
    except UnicodeDecodeError:
        raise NoDsnFile(path=path, reason="it is not text in UTF-8") from None
    if not found:
        raise NoDsnFile(path=path, reason="there is no DSN in it")
    return found


def _streams(given: Mapping[str, str]) -> tuple[str, ...]:
    text = given.get("stream", "").strip()
    if not text:
        raise OptionMissing(
            option="stream", what=f"a name, several with ',' between them, or {ALL} for all"
        )
    names = _names("stream", text)
    if ALL in names and len(names) > 1:
        raise BadOption(option="stream", value=text, wanted=f"names, or {ALL} alone")
    return names


def _names(option: str, text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise BadOption(
            option=option, value=text[:200], wanted="different names with ',' between them"
        )
    return names


def _follower(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return follower_name(text)
    except BadName:
        raise BadOption(
            option="follower", value=text[:100], wanted="a name: letters, digits and '_.:-'"
        ) from None


def _flag(given: Mapping[str, str], option: str) -> bool:
    text = given.get(option, "false").strip().lower()
    if text not in ("true", "false"):
        raise BadOption(option=option, value=text[:100], wanted="true or false")
    return text == "true"


def _count(given: Mapping[str, str], option: str, default: int | None) -> int | None:
    if option not in given:
        return default
    return _number(given, option, int, 1, "a whole number, 1 or more")


def _seconds(given: Mapping[str, str], option: str, default: float) -> float:
    if option not in given:
        return default
    return _number(given, option, float, 0.0, "a number of seconds, 0 or more")


def _number(
    given: Mapping[str, str], option: str, read: Callable[[str], T], least: T, wanted: str
) -> T:
    text = given[option]
    try:
        value = read(text)
    except ValueError:
        value = None
    # Neither NaN nor infinity is in between.
    if value is None or not least <= value <= 2**53:
        raise BadOption(option=option, value=text[:100], wanted=wanted)
    return value
