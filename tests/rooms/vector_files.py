"""Test vectors: the part that is here, and all of them where the whole set lies beside the checkout."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent / "vectors"
_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "vectors"

#: Where the files are.
VECTORS = _BESIDE if _BESIDE.is_dir() else _HERE


def lines(name: str) -> Iterator[dict[str, Any]]:
    """The rows of a file, such as ``auth/random_v10.jsonl.gz``."""
    path = VECTORS / name
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for line in file:
            yield json.loads(line)


def files(pattern: str) -> list[str]:
    """The names of files, such as ``auth/random_*``, that are there."""
    return sorted(str(path.relative_to(VECTORS)) for path in VECTORS.glob(pattern))
