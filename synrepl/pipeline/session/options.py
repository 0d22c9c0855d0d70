"""Options of a Spark session, validated before anything is started."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from synrepl.core.errors import ConfigError

_LOCAL = re.compile(r"local(?:\[(?P<threads>\*|[1-9]\d*)(?:,[1-9]\d*)?\])?")
_CLUSTER = re.compile(r"local-cluster\[(?P<workers>[1-9]\d*),(?P<cores>[1-9]\d*),[1-9]\d*\]")
_ADDRESS = r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])"
_STANDALONE = re.compile(rf"spark://{_ADDRESS}:\d{{1,5}}(?:,{_ADDRESS}:\d{{1,5}})*")
_CONNECT = re.compile(rf"sc://{_ADDRESS}(?::\d{{1,5}})?(?:/.*)?")
_MEMORY = re.compile(r"[1-9]\d*[kmgt]", re.IGNORECASE)

#: Settings that have a field of :class:`SessionOptions`.
_OWN = {
    "spark.master": "the master",
    "spark.remote": "the master",
    "spark.app.name": "the name of the application",
    "spark.driver.memory": "the driver's memory",
    "spark.local.dir": "the directory for scratch files",
    "spark.ui.enabled": "the page of Spark",
}


class BadMaster(ConfigError):
    """{master!r} is no Spark master: want local[2], local[*], local-cluster[2,1,1024], spark://host:port, or sc://host:port for Spark Connect"""


class BadMemory(ConfigError):
    """{memory!r} is no amount of memory for Spark's driver: want a number and a unit, such as 512m or 2g"""


class NotASparkSetting(ConfigError):
    """{key!r} is no setting of Spark: its names begin with 'spark.'"""


class OwnSetting(ConfigError):
    """{key} cannot be set this way: {option} has an option of its own"""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How to open a session.

    :ivar master: ``local[N]``, ``local[*]``, ``local-cluster[workers,cores,MiB]``,
        ``spark://host:port``, or ``sc://host:port`` for a Spark Connect server
    :ivar app_name: the name of the session in Spark's web page and logs
    :ivar local_dir: parent of the session's scratch directory, which is removed at the end; the
        system's directory for temporary files by default
    :ivar driver_memory: heap of the JVM, with a unit: ``512m``, ``2g``
    :ivar ui: whether Spark serves its web page
    :ivar conf: further settings of Spark; they override ours
    :ivar python_path: directories that executors import from, besides their installed packages
    :raises BadMaster: :raises BadMemory: :raises NotASparkSetting: :raises OwnSetting:
    """

    master: str = "local[*]"
    app_name: str = "synrepl"
    local_dir: Path | None = None
    driver_memory: str = "1g"
    ui: bool = False
    conf: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    python_path: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        known = (_LOCAL, _CLUSTER, _STANDALONE, _CONNECT)
        if not any(pattern.fullmatch(self.master) for pattern in known):
            raise BadMaster(master=hide_parameters(self.master))
        if not _MEMORY.fullmatch(self.driver_memory):
            raise BadMemory(memory=self.driver_memory)
        for key in self.conf:
            if key in _OWN:
                raise OwnSetting(key=key, option=_OWN[key])
            if not key.startswith("spark."):
                raise NotASparkSetting(key=key)

    @property
    def is_connect(self) -> bool:
        """Whether the session is on a Spark Connect server, which has its own JVM."""
        return self.master.startswith("sc://")

    @property
    def is_local(self) -> bool:
        """Whether all of Spark runs on this machine, started and ended by us."""
        return self.master.startswith("local")

    @property
    def is_local_cluster(self) -> bool:
        """Whether executors are separate processes on this machine."""
        return _CLUSTER.fullmatch(self.master) is not None

    @property
    def cores(self) -> int | None:
        """How many tasks run at once; None when the master decides that."""
        if cluster := _CLUSTER.fullmatch(self.master):
            return int(cluster["workers"]) * int(cluster["cores"])
        if local := _LOCAL.fullmatch(self.master):
            threads = local["threads"] or "1"
            return len(os.sched_getaffinity(0)) if threads == "*" else int(threads)
        return None


def hide_parameters(master: str) -> str:
    """``master`` without the parameters after its address, which may hold a token."""
    scheme, slashes, rest = master.partition("://")
    address, slash, _ = rest.partition("/")
    return scheme + slashes + address + (slash and "/…")
