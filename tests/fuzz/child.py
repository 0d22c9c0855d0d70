"""Fuzzes one target: ``python -m tests.fuzz.child TARGET FINDINGS [libFuzzer's arguments]``.

The fuzzer writes a finding to a file and continues; it writes one finding per place in the source.
"""

from __future__ import annotations

import hashlib
import sys
import traceback
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(
    include=["synrepl.rooms", "synrepl.federation", "synrepl.core.jsons"]
):
    from tests.fuzz.targets import TARGETS

from synrepl.core.errors import SynreplError
from tests.fuzz.changes import changed

#: Fraction of the inputs that are mutated as bytes rather than as documents.
AS_BYTES = 0.1


def main() -> None:
    """Fuzz until the time limit; does not return."""
    name, findings = sys.argv[1], Path(sys.argv[2])
    target = TARGETS[name]
    seen: set[str] = set()

    def one_input(data: bytes) -> None:
        try:
            target.run(data)
        except SynreplError:
            pass
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            place = hashlib.sha256(_place(error).encode()).hexdigest()[:12]
            if place not in seen:
                seen.add(place)
                (findings / f"{name}-{place}.json").write_bytes(data)
                (findings / f"{name}-{place}.txt").write_text(text)
                print(text, file=sys.stderr, flush=True)

    def change(data: bytes, longest: int, seed: int) -> bytes:
        random = Random(seed)
        new = None if random.random() < AS_BYTES else changed(data, random)
        if new is None or len(new) > longest:
            new = atheris.Mutate(data, longest)
        return new

    atheris.Setup([sys.argv[0], *sys.argv[3:]], one_input, custom_mutator=change)
    atheris.Fuzz()


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "synrepl" in frame.filename] or list(frames)
    return f"{type(error).__name__} {ours[-1].filename} {ours[-1].lineno}"


if __name__ == "__main__":
    main()
