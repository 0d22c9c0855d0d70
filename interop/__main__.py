"""``python -m interop [--write] [PART ...]``."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from types import FrameType

from interop import (
    compacted_groups,
    room_import,
    synapse_masters,
    synapse_redis_worker,
    watch_and_doctor,
)
from interop.databases import Databases
from interop.environments import Environment
from interop.releases import CURRENT, RELEASES, Release
from interop.report import Section, render
from interop.synapse import create_template_database
from interop.synapse_workers import SynapseWorkers
from interop.synrepl_processes import REPOSITORY
from synrepl import __version__
from synrepl.core.errors import SynreplError

DIRECTORY = "SYNREPL_INTEROP_DIR"

PARTS = WORKERS, MASTERS, REDIS, BESIDE, ROOMS, GROUPS = (
    *("workers", "masters", "redis"),
    *("beside", "rooms", "groups"),
)

_REPORT = REPOSITORY / "docs" / "interop.md"


def main(arguments: list[str]) -> int:
    """Run the parts, print the report; 1 when something does not hold, 2 when it cannot be shown."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not set(options.parts) <= set(PARTS):
        parser.error(f"a part is one of {', '.join(PARTS)}")
    signal.signal(signal.SIGTERM, _exit)
    try:
        with _scratch() as scratch:
            kept = os.environ.get(DIRECTORY)
            parts = options.parts or PARTS
            directory = Path(kept).absolute() if kept else scratch
            environments = _environments(directory, wanted(parts))
            text, holds = run(environments, scratch, parts, options.seed)
    except SynreplError as error:
        print(f"interop: {error}", file=sys.stderr)
        return 2
    print(text)
    if options.write:
        _REPORT.write_text(text, encoding="utf-8")
    return 0 if holds else 1


def run(
    environments: Mapping[Release, Environment], scratch: Path, parts: Sequence[str], seed: int
) -> tuple[str, bool]:
    """Do the parts.

    :param scratch: for what need not be kept
    :param seed: of what clients of the masters do
    :returns: the report, and whether everything holds
    """
    sections: list[Section] = []
    with Databases(scratch / "postgres") as databases:
        for release, environment in environments.items():
            _print(f"the schema of Synapse {release}")
            create_template_database(environment, databases, scratch / f"virgin-{release}")
        if WORKERS in parts:
            _print("real workers on our master")
            sections.append(SynapseWorkers(environments, databases, scratch).run())
        if MASTERS in parts:
            for release in RELEASES:
                _print(f"our worker on a real {release} master")
                directory = scratch / f"master-{release}"
                environment = environments[release]
                sections.append(
                    synapse_masters.section(release, environment, databases, directory, seed)
                )
        if REDIS in parts:
            _print("a real worker on our writers, over Redis")
            directory = scratch / "over-redis"
            sections.append(
                synapse_redis_worker.section(environments[CURRENT], databases, directory)
            )
        if BESIDE in parts:
            _print("watch and doctor beside a real server")
            directory = scratch / "beside"
            sections.append(
                watch_and_doctor.section(environments[CURRENT], databases, directory, seed)
            )
        if ROOMS in parts:
            for release in room_import.RELEASES_IMPORTED:
                _print(f"rooms of a running {release} are imported")
                directory = scratch / f"rooms-{release}"
                environment = environments[release]
                sections += room_import.sections(release, environment, databases, directory, seed)
        if GROUPS in parts:
            _print("state groups of a real server are compacted")
            environment = environments[compacted_groups.RELEASE]
            directory = scratch / "groups"
            sections.append(compacted_groups.section(environment, databases, directory))
        facts = _facts(environments, databases)
    return render(facts, sections), all(section.holds for section in sections)


def wanted(parts: Sequence[str]) -> list[Release]:
    """The releases that parts need."""
    by_part = {WORKERS: RELEASES, MASTERS: RELEASES, ROOMS: room_import.RELEASES_IMPORTED}
    by_part[GROUPS] = (compacted_groups.RELEASE,)
    found = [by_part.get(part, (CURRENT,)) for part in parts]
    return list(dict.fromkeys(chain.from_iterable(found)))


def _environments(directory: Path, releases: Sequence[Release]) -> dict[Release, Environment]:
    """Install the missing releases; the environments of all of them."""
    found = {}
    for release in releases:
        environment = found[release] = Environment(release, directory / f"synapse-{release}")
        _print(f"Synapse {release} in {environment.directory}")
        environment.install()
    return found


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="synrepl-interop-") as name:
        Path(name).chmod(0o711)  # PostgreSQL, which refuses to run as root, has to get in
        yield Path(name)


def _facts(environments: Mapping[Release, Environment], databases: Databases) -> dict[str, str]:
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "synrepl": f"{__version__} on CPython {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "PostgreSQL of the Synapse processes": databases.version(),
    }
    for release, environment in environments.items():
        versions = environment.versions()
        text = ", ".join(f"{name} {version}" for name, version in versions.items())
        facts[f"Synapse {release}"] = text
    return facts


def _commit() -> str:
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "not a git checkout"


def _print(what: str) -> None:
    print(f"interop: {what}", file=sys.stderr, flush=True)


def _exit(number: int, frame: FrameType | None) -> None:
    """Unwind, so that everything that was started is ended."""
    sys.exit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m interop",
        description="Real Synapse workers on our master, our worker on real Synapse masters, "
        "and ours beside a real Synapse.",
        epilog=f"{DIRECTORY} names a directory that keeps what is installed; "
        "SYNREPL_INTEROP_PYTHON38, ...39 and ...311 name the interpreters.",
    )
    known = ", ".join(PARTS)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{known}; without any: all")
    parser.add_argument("--write", action="store_true", help="write docs/interop.md too")
    parser.add_argument("--seed", type=int, default=1, help="of what clients do (default: 1)")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
