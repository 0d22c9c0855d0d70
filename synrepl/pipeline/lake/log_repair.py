"""Makes a table readable again whose Delta log has lost a commit, or has a damaged one.

A version of a table is what a checkpoint says, or nothing, and what all commits after it say. If a
part of that is lost, what came after it cannot be relied upon: a lost commit may have replaced files
that later ones have not. So the table goes back to the newest version that can be read, with the
position of that version, and the next landing reads from the database what came after it. Files of
that version that have been deleted since are lost files, which :func:`.repair.repair` makes again.

The parts of the log that are not used any longer are moved to a folder beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from synrepl.core.errors import Refused
from synrepl.core.tokens import Token
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.storage import (
    LakePath,
    ObjectUnreadable,
    ensure_folder,
    read_bytes,
    replace_bytes,
)
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.lake.table_log import LOG, commit_name, lake_errors
from synrepl.pipeline.lake.watermarks import Watermarks
from synrepl.pipeline.source.plan.chunks import check_not_trimmed
from synrepl.positions.vector import PositionVector
from synrepl.storage.store import Trimmed

_LAST = "_last_checkpoint"

#: Beside the log. Readers and ``vacuum`` ignore names that begin so.
SET_ASIDE = "_damaged_log"

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")


class LogNotRepaired(Refused):
    """the log of the lake's table {path} is damaged ({damage}), and no version of it can be read; nothing was changed: land the stream into another lake"""


class LogBeforeTrimming(Refused):
    """the log of the lake's table {path} is damaged ({damage}); its newest readable version, {version}, is at {position}, and the database has trimmed the stream up to {trimmed}, so what lies between would be lost; nothing was changed: --accept-missing goes back to that version all the same, and 'synrepl lake land --accept-gap {stream}' goes on from there"""


@dataclass(frozen=True, slots=True)
class RepairedLog:
    """A table that went back to a version that can be read.

    :ivar damage: what is lost or damaged, in words
    :ivar version: the version of the table now
    :ivar newest: the newest version before
    :ivar position: the position of the table now
    :ivar set_aside: the names of the parts of the log that were moved
    :ivar of_watermarks: it is the table of the watermarks, and not a stream's
    """

    stream: str
    quarantined: bool
    damage: tuple[str, ...]
    version: int
    newest: int
    position: PositionVector
    set_aside: tuple[str, ...]
    of_watermarks: bool = False


@dataclass(frozen=True, slots=True)
class _Log:
    """What a log consists of.

    :ivar names: of all its files
    :ivar damage: what is wrong with it, in words; empty if nothing is
    :ivar base: the checkpoint that it is to be read from; -1 for its beginning; None if there is none
    :ivar version: the newest version that can be read
    :ivar newest: the newest version that there is a part of
    """

    names: frozenset[str]
    damage: tuple[str, ...]
    base: int | None
    version: int
    newest: int

    @property
    def unused(self) -> list[str]:
        """The names of what the readable version is better off without."""
        return sorted(
            name
            for name in self.names
            if name == _LAST
            or ((found := _COMMIT.fullmatch(name)) and int(found[1]) > self.version)
            or ((found := _CHECKPOINT.fullmatch(name)) and int(found[1]) > (self.base or 0))
        )


def repair_logs(
    lake: Lake,
    streams: Sequence[str],
    trimmed: Callable[[str], Token],
    *,
    accept_missing: bool = False,
) -> list[RepairedLog]:
    """Let each table of some streams and their quarantines, and the watermarks, go back to a version that can be read.

    Call it within :meth:`.Lake.write_lock`.

    :param trimmed: up to where the facts of a stream have been trimmed in the database
    :param accept_missing: also if the database does not have what came after that version any longer
    :raises LogNotRepaired: :raises LogBeforeTrimming:
    :raises LakeFailed: the log cannot be reached, or the object store does not give a part of it
    """
    found = []
    for quarantined, folder in (False, "streams"), (True, "quarantine"):
        for stream in streams:
            path = lake.path / folder / stream
            with lake_errors(path, "repaired"):
                if (log := _damaged(path)) is not None:
                    upto = 0 if quarantined or accept_missing else trimmed(stream)
                    found.append(_repaired(path, log, quarantined, upto))
    marks = Watermarks(lake).path
    with lake_errors(marks, "repaired"):
        if (log := _damaged(marks)) is not None:
            found.append(replace(_repaired(marks, log, False, 0), of_watermarks=True))
    return found


def _damaged(path: LakePath) -> _Log | None:
    """The log of a table; None if nothing is wrong with it, or there is no table."""
    log = _examine(path / LOG) if path.is_dir() else None
    return log if log is not None and log.damage else None


def _repaired(path: LakePath, log: _Log, quarantined: bool, trimmed: Token) -> RepairedLog:
    damage = "; ".join(log.damage)
    if log.base is None:
        raise LogNotRepaired(path=path, damage=damage)
    unused = log.unused
    position = _position(path, log.names.difference(unused))
    try:
        check_not_trimmed(path.name, position, trimmed)
    except Trimmed:
        raise LogBeforeTrimming(
            path=path,
            damage=damage,
            version=log.version,
            position=position,
            trimmed=trimmed,
            stream=path.name,
        ) from None
    ensure_folder(path / SET_ASIDE)
    # The newest first: whatever is left if this ends early has the same damage, or none.
    for name in reversed(unused):
        replace_bytes(path / SET_ASIDE / name, read_bytes(path / LOG / name))
        (path / LOG / name).unlink()
    return RepairedLog(
        path.name, quarantined, log.damage, log.version, log.newest, position, tuple(unused)
    )


def _position(path: LakePath, names: frozenset[str]) -> PositionVector:
    """The position of a table with these parts of its log only."""
    with TemporaryDirectory(prefix="synrepl-log-") as folder:
        copy = Path(folder) / path.name
        (copy / LOG).mkdir(parents=True)
        for name in names:
            if _COMMIT.fullmatch(name) or _CHECKPOINT.fullmatch(name):
                (copy / LOG / name).write_bytes(read_bytes(path / LOG / name))
        return StreamTable(copy).position


def _examine(path: LakePath) -> _Log | None:
    """Read a log; None if there is none."""
    names = frozenset(each.name for each in path.iterdir()) if path.is_dir() else frozenset()
    commits = _numbers(names, _COMMIT)
    checkpoints = _numbers(names, _CHECKPOINT)
    if not commits and not checkpoints:
        return None
    newest = max(commits | checkpoints)
    damage = [reason] if (reason := _unreadable_pointer(path, names, checkpoints)) else []
    readable: set[int] = set()
    # From the newest checkpoint that can be read, or from the beginning, as far as commits go.
    for base in [*sorted(checkpoints, reverse=True), -1]:
        if base >= 0 and (reason := _unreadable_checkpoint(path / _checkpoint(base))):
            damage.append(f"checkpoint {base} {reason}")
            continue
        if base < 0 and 0 not in commits:
            break
        version = base
        for number in range(base + 1, newest + 1):
            if number in readable:
                version = number
                continue
            reason = (
                _unreadable_commit(path / commit_name(number)) if number in commits else "is lost"
            )
            if reason:
                damage.append(f"commit {number} {reason}")
                break
            readable.add(number)
            version = number
        return _Log(names, tuple(damage), base, version, newest)
    return _Log(names, (*damage, "its beginning is lost"), None, -1, newest)


def _numbers(names: frozenset[str], pattern: re.Pattern[str]) -> set[int]:
    return {int(found[1]) for name in names if (found := pattern.fullmatch(name))}


def _checkpoint(number: int) -> str:
    return f"{number:020}.checkpoint.parquet"


def _unreadable_pointer(path: LakePath, names: frozenset[str], checkpoints: set[int]) -> str:
    """Why it cannot be told from the log which checkpoint is the last; "" if it can, or has to be looked for."""
    if _LAST not in names:
        return ""
    try:
        last = msgspec.json.decode(read_bytes(path / _LAST), type=dict[str, object]).get("version")
    except ObjectUnreadable:
        raise
    except (OSError, msgspec.DecodeError):
        return f"{_LAST} cannot be read"
    return "" if last in checkpoints else f"checkpoint {last} is lost"


def _unreadable_commit(path: LakePath) -> str:
    """Why a commit cannot be read; "" if it can."""
    try:
        lines = [line for line in read_bytes(path).splitlines() if line.strip()]
        for line in lines:
            msgspec.json.decode(line, type=dict[str, object])
    except FileNotFoundError:
        return "is lost"
    except ObjectUnreadable:
        raise
    except (OSError, msgspec.DecodeError):
        return "cannot be read"
    return "" if lines else "is empty"


def _unreadable_checkpoint(path: LakePath) -> str:
    """Why a checkpoint cannot be read; "" if it can."""
    try:
        pq.read_table(BytesIO(read_bytes(path)))
    except FileNotFoundError:
        return "is lost"
    except ObjectUnreadable:
        raise
    except (OSError, pa.ArrowException):
        return "cannot be read"
    return ""
