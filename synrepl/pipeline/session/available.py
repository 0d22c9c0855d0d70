"""Whether Spark is installed, asked without importing it (which takes half a second)."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from synrepl.core.errors import ConfigError

#: What the extras bring, by the names they are imported under.
SPARK = ("pyspark", "pyarrow", "pandas", "adbc_driver_postgresql", "deltalake")
CONNECT = (*SPARK, "grpc", "grpc_status", "google.rpc", "zstandard")


class SparkMissing(ConfigError):
    """Spark is not installed ({missing} cannot be found): run pip install 'synrepl[spark]'"""


class ConnectMissing(ConfigError):
    """the client of Spark Connect is not installed ({missing} cannot be found): run pip install 'synrepl[connect]'"""


def missing(modules: Iterable[str] = SPARK) -> tuple[str, ...]:
    """Those of ``modules`` that are not installed; none of them is imported."""
    return tuple(name for name in modules if not _installed(name))


def require_spark() -> None:
    """Make sure that a session of our own can be imported.

    :raises SparkMissing: something of the extra ``spark`` is not there
    """
    if absent := missing(SPARK):
        raise SparkMissing(missing=", ".join(absent))


def require_connect() -> None:
    """Make sure that a session on a Spark Connect server can be imported.

    :raises ConnectMissing: something of the extra ``connect`` is not there
    """
    if absent := missing(CONNECT):
        raise ConnectMissing(missing=", ".join(absent))


def _installed(name: str) -> bool:
    # One level at a time: find_spec of a dotted name imports the parent, or fails without it.
    above = name.rpartition(".")[0]
    return (not above or _installed(above)) and find_spec(name) is not None
