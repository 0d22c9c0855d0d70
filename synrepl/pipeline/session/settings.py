"""Settings, environment and scratch directory of a JVM of our own."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory, gettempdir

import synrepl
from synrepl.core.errors import ConfigError
from synrepl.pipeline.session.options import SessionOptions

#: Settings, and options of data sources, that Spark hides in plans and on its web page.
HIDDEN_KEYS = "(?i)secret|password|passwd|token|access[.]?key|dsn|conninfo|credential"
HIDDEN_OPTIONS = "(?i)url|uri|dsn|conninfo|password|secret|token|credential"

#: Matches passwords inside a text.
HIDDEN_TEXTS = r"(?i)password\s*=\s*('(\\.|[^'])*'|\S+)|(?<=://)[^\s/@]*:[^\s/@]*@"

#: Settings of every session, also on a Connect server.
SQL = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}

#: Arrow data comes from pyarrow, whose lengths are right: checking the bounds of each cell again
#: costs a tenth of a read.
_ARROW = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"

_LOOPBACK = "127.0.0.1"

_PREFIX = "synrepl-spark-"
_LOCK = "owner.lock"
_TMP = "tmp"

#: A socket's path has 107 bytes at most, and the name that Spark gives it has 42.
_LONGEST_TMP = 64

_LOG4J = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.err.ref = err
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = %p %c{1}: %m%n%ex{short}
"""


class NoScratch(ConfigError):
    """there can be no scratch directory for Spark in {where}: {reason}"""


def settings(options: SessionOptions, scratch: Path) -> dict[str, str]:
    """All settings of a session in a JVM of our own; those of the caller override ours.

    :param scratch: the session's scratch directory
    """
    ours = {
        "spark.master": options.master,
        "spark.app.name": options.app_name,
        "spark.driver.memory": options.driver_memory,
        "spark.local.dir": str(scratch / "local"),
        "spark.ui.enabled": str(options.ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        "spark.redaction.regex": HIDDEN_KEYS,
        "spark.redaction.string.regex": HIDDEN_TEXTS,
        "spark.sql.redaction.options.regex": HIDDEN_OPTIONS,
        "spark.sql.redaction.string.regex": HIDDEN_TEXTS,
        **SQL,
    }
    if options.cores is not None:
        ours["spark.sql.shuffle.partitions"] = str(options.cores)
    if options.is_local:
        ours["spark.driver.bindAddress"] = ours["spark.driver.host"] = _LOOPBACK
        # Every user of this machine can reach the port that executors connect to.
        ours["spark.authenticate"] = "true"
        ours["spark.authenticate.secret"] = token_hex(32)
        if len(str(scratch / _TMP)) <= _LONGEST_TMP:
            # A tenth cheaper than TCP for a read, and closed to other users.
            ours["spark.python.unix.domain.socket.enabled"] = "true"
            ours["spark.python.unix.domain.socket.dir"] = str(scratch / _TMP)
    separate = not options.is_local or options.is_local_cluster  # executors are other processes
    if separate and (path := _python_path(options)):
        ours["spark.executorEnv.PYTHONPATH"] = path
    ours.update(options.conf)
    driver = [
        f'"-Djava.io.tmpdir={scratch / _TMP}"',
        f'"-Dlog4j2.configurationFile={(scratch / "log4j2.properties").as_uri()}"',
        "-XX:-UsePerfData",  # files elsewhere, which a killed JVM leaves there
        _ARROW,
    ]
    for process, needed in ("driver", " ".join(driver)), ("executor", _ARROW):
        key = f"spark.{process}.extraJavaOptions"
        ours[key] = f"{needed} {ours.get(key, '')}".strip()
    return ours


def environment(options: SessionOptions, java_home: Path, scratch: Path) -> dict[str, str | None]:
    """Changes to the environment for the start of the JVM; None removes a variable.

    :param java_home: see :meth:`synrepl.pipeline.session.requirements.Java.home_for_spark`
    """
    changes: dict[str, str | None] = {
        "JAVA_HOME": str(java_home),
        # Settings are in a file because every user of this machine can read a command line. An
        # administrator's spark-defaults.conf still counts, after ours.
        "PYSPARK_SUBMIT_ARGS": f"--properties-file '{_properties(scratch)}' --load-spark-defaults pyspark-shell",
        # The session runs in a JVM of our own, whatever started this process.
        "PYSPARK_GATEWAY_PORT": None,
        "PYSPARK_GATEWAY_SECRET": None,
        "SPARK_REMOTE": None,
        "SPARK_LOCAL_REMOTE": None,
        "SPARK_CONNECT_MODE_ENABLED": None,
        "SPARK_API_MODE": None,
        "MASTER": None,
    }
    if options.is_local:
        changes |= {
            # The default is the python3 on PATH, which lacks our packages.
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_HOME": str(scratch / "home"),
            # The default is the first outward interface.
            "SPARK_LOCAL_IP": _LOOPBACK,
            "SPARK_LOCAL_HOSTNAME": _LOOPBACK,
            "SPARK_LOCAL_DIRS": None,  # would override spark.local.dir
            "SPARK_CONF_DIR": None,
            "PYTHONPATH": _python_path(options) or None,
        }
    return changes


@contextmanager
def changed_environ(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Change this process's environment for the time of a ``with``; None removes a variable."""

    def change(values: Mapping[str, str | None]) -> None:
        for name, value in values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    before = {name: os.environ.get(name) for name in changes}
    change(changes)
    try:
        yield
    finally:
        change(before)


@contextmanager
def scratch_directory(parent: Path | None) -> Iterator[Path]:
    """A new private directory, removed at the end, and so are those of killed processes.

    :param parent: where it is made; by default the system's directory for temporary files
    :raises NoScratch: it cannot be made there
    """
    place = Path(gettempdir()) if parent is None else parent
    with ExitStack() as stack:
        try:
            made = TemporaryDirectory(prefix=_PREFIX, dir=place, ignore_cleanup_errors=True)
            scratch = Path(stack.enter_context(made)).resolve()
            # Locked before it has its name: an unlocked one is a dead process's.
            lock = stack.enter_context(open(scratch / "new.lock", "wb"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (scratch / "new.lock").rename(scratch / _LOCK)
        except OSError as error:
            raise NoScratch(where=parent or "TMPDIR", reason=error.strerror or error) from None
        for other in place.glob(f"{_PREFIX}*"):
            with suppress(OSError):  # locked, being removed, or not a scratch directory
                if other.lstat().st_uid == os.getuid():
                    with open(other / _LOCK, "r+b") as dead:
                        fcntl.flock(dead, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(other, ignore_errors=True)
        yield scratch


def write_files(scratch: Path, configured: Mapping[str, str]) -> None:
    """Write the files that the JVM reads at its start into its private scratch directory."""
    for name in ("local", _TMP, "home"):
        (scratch / name).mkdir(mode=0o700)
    (scratch / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")
    lines = [f"{_escaped(key)}={_escaped(value)}\n" for key, value in sorted(configured.items())]
    _properties(scratch).write_text("".join(lines), encoding="ascii")
    # SPARK_HOME is the installed package, as links, but for two folders. The workers of a local
    # cluster write to "work", and the package may be read-only. Without the archive in "python",
    # Python processes import the installed PySpark, which is compiled; each would compile the
    # archive's anew, which takes half a second.
    import pyspark

    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name not in ("work", "python"):
            (scratch / "home" / entry.name).symlink_to(entry)


def remove_secrets(scratch: Path) -> None:
    """Remove the file with the settings, once the JVM has read it."""
    _properties(scratch).unlink(missing_ok=True)


def _properties(scratch: Path) -> Path:
    return scratch / "spark.properties"


def _python_path(options: SessionOptions) -> str:
    """Where Python workers import from besides installed packages, such as a checkout of ours."""
    root = Path(synrepl.__file__).resolve().parent.parent
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    paths = [*options.python_path] if root in installed else [root, *options.python_path]
    inherited = os.environ.get("PYTHONPATH", "") if options.is_local else ""
    names = [*map(str, paths), *filter(None, inherited.split(os.pathsep))]
    return os.pathsep.join(dict.fromkeys(names))


def _escaped(text: str) -> str:
    """``text`` as a key or value of a Java properties file."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(
        chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\u{code:04x}"
        for code in codes
    )
