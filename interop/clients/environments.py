"""What the clients are installed into: a virtual environment, and a bundle for the browser."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import orjson

from synrepl.core.errors import Unavailable

_HERE = Path(__file__).parent
_REQUIREMENTS = _HERE / "requirements.txt"
_PACKAGES = _HERE / "package.json"

#: The programs that run inside the environments.
PROGRAMS = _HERE / "programs"

_TIME_LIMIT_S = 600


class ClientsNotInstalled(Unavailable):
    """the clients cannot be installed into {directory} ({command} ended with {status}): {reason}"""


class ClientEnvironments:
    """The clients, installed.

    :param directory: created if it does not exist, and reused while the requirements are the same
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mark = directory / "requirements.sha256"

    @property
    def python(self) -> Path:
        """The interpreter that has matrix-nio."""
        return self._directory / "python" / "bin" / "python"

    @property
    def commander(self) -> Path:
        """The program matrix-commander."""
        return self.python.with_name("matrix-commander")

    @property
    def page(self) -> Path:
        """The directory of the page with matrix-js-sdk."""
        return self._directory / "page"

    def install(self) -> None:
        """Install what is not there yet.

        :raises ClientsNotInstalled:
        """
        files = [_REQUIREMENTS, _PACKAGES, *sorted(PROGRAMS.iterdir())]
        wanted = sha256(b"\0".join(each.read_bytes() for each in files if each.is_file()))
        if self._mark.exists() and self._mark.read_text() == wanted.hexdigest():
            return
        shutil.rmtree(self._directory, ignore_errors=True)
        self.page.mkdir(parents=True)
        self._run([sys.executable, "-m", "venv", self._directory / "python"])
        pip: list[str | Path] = [
            self.python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        self._run([*pip, "--requirement", _REQUIREMENTS])
        for path in (_PACKAGES, PROGRAMS / "page.js", PROGRAMS / "page.html"):
            shutil.copy(path, self.page)
        self._run(["npm", "install", "--no-audit", "--no-fund"], self.page)
        bundle = ["npx", "esbuild", "page.js", "--bundle", "--outfile=bundle.js"]
        self._run([*bundle, "--format=iife", "--define:global=window"], self.page)
        self._mark.write_text(wanted.hexdigest())

    def versions(self) -> Mapping[str, str]:
        """Versions of the clients, by name."""
        frozen = self._run([self.python, "-m", "pip", "--disable-pip-version-check", "freeze"])
        found = dict(line.split("==", 1) for line in frozen.splitlines() if "==" in line)
        sdk = orjson.loads((self.page / "node_modules/matrix-js-sdk/package.json").read_bytes())
        wanted = ("matrix-nio", "matrix-commander")
        return {**{name: found[name] for name in wanted}, "matrix-js-sdk": sdk["version"]}

    def _run(self, command: Sequence[str | Path], directory: Path | None = None) -> str:
        done = subprocess.run(
            command,
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=_TIME_LIMIT_S,
            check=False,
        )
        if done.returncode != 0:
            raise ClientsNotInstalled(
                directory=self._directory,
                command=" ".join(map(str, command[:3])),
                status=done.returncode,
                reason=" | ".join(done.stderr.strip().splitlines()[-5:]),
            )
        return done.stdout
