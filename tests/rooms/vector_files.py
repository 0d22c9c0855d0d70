"""Test vectors: the part in the repository, or the whole set in ``SYNREPL_TEST_VECTORS``."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent / "vectors"
_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "vectors"
_WHOLE = Path(os.environ.get("SYNREPL_TEST_VECTORS") or _BESIDE)

#: The folder of the files.
VECTORS = _WHOLE if _WHOLE.is_dir() else _HERE


def lines(name: str) -> Iterator[dict[str, Any]]:
    """The rows of a file, such as ``auth/random_v10.jsonl.gz``."""
    path = VECTORS / name
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for line in file:
            yield json.loads(line)


def files(pattern: str) -> list[str]:
    """The names of files, such as ``auth/random_*``, that are there."""
    return sorted(str(path.relative_to(VECTORS)) for path in VECTORS.glob(pattern))
