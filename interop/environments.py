"""A Python environment for each release of Synapse."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from interop import interpreters
from interop.releases import Release
from synrepl.core.errors import Unavailable

_TIME_LIMIT_S = 900

#: What the report tells the versions of.
TOLD = ("matrix-synapse", "Twisted", "prometheus-client", "psycopg2-binary")


class InstallFailed(Unavailable):
    """Synapse {release} could not be installed into {directory} ({program} ended with {status}): {reason}"""


class Environment:
    """A virtual environment with one release of Synapse in it.

    :param directory: made when it does not exist, and used again when its
        requirements are still the same
    """

    def __init__(self, release: Release, directory: Path) -> None:
        self.release = release
        self.directory = directory
        self._mark = directory / "requirements.sha256"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.directory / "bin" / "python"

    def make(self) -> bool:
        """Install what is missing; True when anything was.

        :raises InterpreterMissing: :raises InterpreterUnfit: :raises InstallFailed:
        """
        wanted = sha256(self.release.requirements.read_bytes()).hexdigest()
        if self.python.exists() and self._mark.exists() and self._mark.read_text() == wanted:
            return False
        shutil.rmtree(self.directory, ignore_errors=True)
        interpreter = interpreters.find(self.release.python)
        self._run([interpreter, "-m", "venv", self.directory])
        pip: list[str | Path] = [
            self.python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        self._run([*pip, "pip<24", "setuptools<58", "wheel"])
        self._run([*pip, "--requirement", self.release.requirements])
        self._mark.write_text(wanted)
        return True

    def versions(self) -> Mapping[str, str]:
        """What is installed, by name."""
        done = self._run([self.python, "-m", "pip", "--disable-pip-version-check", "freeze"])
        pairs = [line.split("==", 1) for line in done.splitlines() if "==" in line]
        found = {name.replace("_", "-"): number for name, number in pairs}
        version = self._run([self.python, "--version"]).removeprefix("Python ").strip()
        return {"CPython": version, **{name: found[name] for name in TOLD}}

    def _run(self, command: Sequence[str | Path]) -> str:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIME_LIMIT_S, check=False
        )
        if done.returncode != 0:
            reason = " | ".join(done.stderr.strip().splitlines()[-5:])
            raise InstallFailed(
                release=self.release,
                directory=self.directory,
                program=command[0],
                status=done.returncode,
                reason=reason,
            )
        return done.stdout
