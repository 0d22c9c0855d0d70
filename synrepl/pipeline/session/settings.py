"""The settings a session starts with, and the file they are handed to Spark in."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex

import synrepl
from synrepl.pipeline.session.options import SessionOptions

#: What Spark must not show of settings, and of a source's options, in plans and on its page.
HIDDEN_KEYS = "(?i)secret|password|passwd|token|access[.]?key|dsn|conninfo|credential"
HIDDEN_OPTIONS = "(?i)url|uri|dsn|conninfo|password|secret|token|credential"

#: What has the look of a password inside a text.
HIDDEN_TEXTS = r"(?i)password\s*=\s*('(\\.|[^'])*'|\S+)|(?<=://)[^\s/@]*:[^\s/@]*@"

#: Of a session, wherever it runs; what a Connect session can set, too.
SQL = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Off by default, and a source that can push filters then fails.
    "spark.sql.python.filterPushdown.enabled": "true",
}

#: What comes over Arrow was written by pyarrow, whose lengths are right: to compare each cell's place
#: with them again costs a tenth of what a read takes.
_ARROW = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"

_LOOPBACK = "127.0.0.1"

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


def settings(options: SessionOptions, scratch: Path) -> dict[str, str]:
    """Every setting of a session in a JVM of our own; those of the caller win.

    :param scratch: the session's own directory
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
    if options.own_machine:
        ours["spark.driver.bindAddress"] = ours["spark.driver.host"] = _LOOPBACK
        # Every user of this machine reaches the port that executors speak to.
        ours["spark.authenticate"] = "true"
        ours["spark.authenticate.secret"] = token_hex(32)
        if len(str(scratch / _TMP)) <= _LONGEST_TMP:
            # Cheaper than TCP by a tenth of what a read takes, and nobody else can connect.
            ours["spark.python.unix.domain.socket.enabled"] = "true"
            ours["spark.python.unix.domain.socket.dir"] = str(scratch / _TMP)
    apart = not options.own_machine or options.own_cluster  # executors are other processes
    if apart and (path := python_path(options)):
        ours["spark.executorEnv.PYTHONPATH"] = path
    ours.update(options.conf)
    for process, needed in ("driver", _java_options(scratch)), ("executor", _ARROW):
        key = f"spark.{process}.extraJavaOptions"
        ours[key] = f"{needed} {ours.get(key, '')}".strip()
    return ours


def python_path(options: SessionOptions) -> str:
    """What workers import from besides installed packages: a checkout is not one.

    On this machine that is also what this process was told to import from.
    """
    root = Path(synrepl.__file__).resolve().parent.parent
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    paths = [*options.python_path] if root in installed else [root, *options.python_path]
    told = os.environ.get("PYTHONPATH", "") if options.own_machine else ""
    names = [*map(str, paths), *filter(None, told.split(os.pathsep))]
    return os.pathsep.join(dict.fromkeys(names))


def environment(options: SessionOptions, java_home: Path, scratch: Path) -> dict[str, str | None]:
    """What the environment of the JVM has that ours has not; None takes a variable away.

    :param java_home: see :meth:`synrepl.pipeline.session.java.Java.home_for_spark`
    """
    changes: dict[str, str | None] = {
        "JAVA_HOME": str(java_home),
        "PYSPARK_SUBMIT_ARGS": " ".join(
            [
                # Not on the command line, which every user of this machine can read. What an
                # administrator has put into spark-defaults.conf still counts, after ours.
                *("--properties-file", f"'{scratch / 'spark.properties'}'"),
                *("--load-spark-defaults", "pyspark-shell"),
            ]
        ),
        # The session is one of our own JVM, whatever this process was started by.
        "PYSPARK_GATEWAY_PORT": None,
        "PYSPARK_GATEWAY_SECRET": None,
        "SPARK_REMOTE": None,
        "SPARK_LOCAL_REMOTE": None,
        "SPARK_CONNECT_MODE_ENABLED": None,
        "SPARK_API_MODE": None,
        "MASTER": None,
    }
    if options.own_machine:
        changes |= {
            # Else a "python3" on PATH, which has none of our packages.
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_HOME": str(_spark_home(scratch)),
            # Else the first outward interface.
            "SPARK_LOCAL_IP": _LOOPBACK,
            "SPARK_LOCAL_HOSTNAME": _LOOPBACK,
            "SPARK_LOCAL_DIRS": None,  # would win over spark.local.dir
            "SPARK_CONF_DIR": None,
            "PYTHONPATH": python_path(options) or None,
        }
    return changes


def write_files(scratch: Path, configured: Mapping[str, str]) -> None:
    """Lay down what the JVM reads as it starts; ``scratch`` is private."""
    for name in ("local", _TMP):
        (scratch / name).mkdir(mode=0o700)
    (scratch / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")
    lines = [f"{_escaped(key)}={_escaped(value)}\n" for key, value in sorted(configured.items())]
    (scratch / "spark.properties").write_text("".join(lines), encoding="ascii")


def _java_options(scratch: Path) -> str:
    return " ".join(
        [
            f'"-Djava.io.tmpdir={scratch / _TMP}"',
            f'"-Dlog4j2.configurationFile={(scratch / "log4j2.properties").as_uri()}"',
            "-XX:-UsePerfData",  # files elsewhere, which a killed JVM leaves there
            _ARROW,
        ]
    )


def _spark_home(scratch: Path) -> Path:
    """The pip package, as links in the scratch directory, without some of it.

    The workers of a local cluster keep their files in ``work``: nothing is written among the
    installed packages. And without its archive of itself, Python processes import the installed
    PySpark, which is compiled; the archive is compiled by each anew, for half a second.
    """
    import pyspark

    home = scratch / "home"
    home.mkdir(mode=0o700)
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name not in ("work", "python"):
            (home / entry.name).symlink_to(entry)
    return home


def _escaped(text: str) -> str:
    """As a key or value of a Java properties file."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(
        chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\u{code:04x}"
        for code in codes
    )
