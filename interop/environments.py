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

#: Packages whose versions the report lists.
REPORTED_PACKAGES = ("matrix-synapse", "Twisted", "prometheus-client", "psycopg2-binary")


class InstallFailed(Unavailable):
    """Synapse {release} could not be installed into {directory} ({program} ended with {status}): {reason}"""


class Environment:
    """A virtual environment with one release of Synapse.

    :param directory: created if it does not exist, and reused while its requirements are the same
    """

    def __init__(self, release: Release, directory: Path) -> None:
        self.release = release
        self.directory = directory
        self._mark = directory / "requirements.sha256"

    @property
    def python(self) -> Path:
        """Path of its interpreter."""
        return self.directory / "bin" / "python"

    def install(self) -> bool:
        """Install the release; True if anything had to be installed.

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
        """Versions of CPython and the reported packages, by name."""
        done = self._run([self.python, "-m", "pip", "--disable-pip-version-check", "freeze"])
        pairs = [line.split("==", 1) for line in done.splitlines() if "==" in line]
        found = {name.replace("_", "-"): number for name, number in pairs}
        version = self._run([self.python, "--version"]).removeprefix("Python ").strip()
        return {"CPython": version, **{name: found[name] for name in REPORTED_PACKAGES}}

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
