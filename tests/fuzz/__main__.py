"""``python -m tests.fuzz [--seconds N] TARGET ...``; exits with 1 if something was found."""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.targets import TARGETS

#: Seconds that one input may take.
TOO_LONG = 20


def main(arguments: list[str]) -> int:
    """Fuzz the targets one after another, and print the findings."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if unknown := set(options.targets) - TARGETS.keys():
        parser.error(f"no target: {', '.join(sorted(unknown))}")
    if find_spec("atheris") is None:
        parser.error("atheris is not installed; pip install atheris")
    options.findings.mkdir(parents=True, exist_ok=True)
    before = _files(options.findings)
    ended_well = True
    for target in options.targets or sorted(TARGETS):
        with TemporaryDirectory(prefix="synrepl-fuzz-") as scratch:
            kept = options.corpus / target if options.corpus else Path(scratch) / "corpus"
            kept.mkdir(parents=True, exist_ok=True)
            seeds = Path(scratch) / "seeds"
            seeds.mkdir()
            for number, seed in enumerate(TARGETS[target].seeds()):
                (seeds / str(number)).write_bytes(seed)
            print(f"{target}: {options.seconds} s from {len(list(seeds.iterdir()))} seeds")
            command = [sys.executable, "-m", "tests.fuzz.child", target, str(options.findings)]
            command += [str(kept), str(seeds), f"-max_total_time={options.seconds}"]
            command += [f"-seed={options.seed}", f"-timeout={TOO_LONG}", "-max_len=65536"]
            command += ["-print_final_stats=1", f"-artifact_prefix={options.findings}/{target}-"]
            ended_well &= not subprocess.run(command, check=False).returncode
    found = sorted(_files(options.findings) - before)
    for path, _ in found:
        print(f"found: {path}")
    print(f"{len(found)} findings")
    return int(bool(found) or not ended_well)


def _files(folder: Path) -> set[tuple[Path, int]]:
    """Files with their modification times, because a finding may be overwritten."""
    return {(path, path.stat().st_mtime_ns) for path in folder.iterdir()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    names = ", ".join(sorted(TARGETS))
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=names)
    parser.add_argument("--seconds", type=int, default=60, help="how long to fuzz each target")
    parser.add_argument("--seed", type=int, default=1, help="seed of the fuzzer")
    parser.add_argument("--corpus", type=Path, help="a folder that keeps inputs between runs")
    where = Path(__file__).parent / "findings"
    parser.add_argument("--findings", type=Path, default=where, help="the folder for findings")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
