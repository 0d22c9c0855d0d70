"""Where the Pythons are that the releases need."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from synrepl.core.errors import ConfigError

_PROBE = "import ensurepip, sys, venv; print(sys.version.split()[0])"


class InterpreterMissing(ConfigError):
    """CPython {wanted} is needed to run a Synapse of its time, and was not found: set {variable} to its program, or put python{wanted} (with venv) on PATH, or install it under pyenv; tried: {tried}"""


class InterpreterUnfit(ConfigError):
    """{variable} is {path}, which is no usable CPython {wanted} with venv: {reason}"""


def variable(python: tuple[int, int]) -> str:
    """The environment variable that names the interpreter."""
    major, minor = python
    return f"SYNREPL_INTEROP_PYTHON{major}{minor}"


def find(python: tuple[int, int]) -> Path:
    """The interpreter of that version: as the variable says, on PATH, or under pyenv.

    :raises InterpreterUnfit: the one in the variable will not do
    :raises InterpreterMissing: there is none
    """
    wanted = ".".join(map(str, python))
    named = os.environ.get(variable(python))
    if named:
        path = Path(shutil.which(named) or named)
        fault = _fault(path, wanted)
        if fault is not None:
            raise InterpreterUnfit(
                variable=variable(python), path=path, wanted=wanted, reason=fault
            )
        return path
    tried = []
    for path in _candidates(wanted):
        fault = _fault(path, wanted)
        if fault is None:
            return path
        tried.append(f"{path} ({fault})")
    raise InterpreterMissing(
        wanted=wanted, variable=variable(python), tried="; ".join(tried) or "none"
    )


def _candidates(wanted: str) -> Iterator[Path]:
    on_path = shutil.which(f"python{wanted}")
    if on_path is not None:
        yield Path(on_path)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{wanted}.*/bin/python"), reverse=True)


def _fault(path: Path, wanted: str) -> str | None:
    """Why an interpreter cannot be used; a shim of pyenv may exist and not work."""
    try:
        done = subprocess.run(
            [path, "-c", _PROBE], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        return f"exit status {done.returncode}: {lines[0]}"
    found = done.stdout.strip()
    return None if found.startswith(f"{wanted}.") else f"it is {found}"
