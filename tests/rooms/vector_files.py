"""Test vectors: those in the repository, and more of them in ``SYNREPL_TEST_VECTORS`` if that is set.

``tests/rooms/README.md`` describes the folders.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: The files in the repository.
VECTORS = Path(__file__).parent / "vectors"


def extra_folder(variable: str) -> Path | None:
    """The folder that an environment variable names; None if the variable is not set.

    :raises NotADirectoryError: it is set, and there is no such folder
    """
    value = os.environ.get(variable)
    if not value:
        return None
    if not (folder := Path(value)).is_dir():
        raise NotADirectoryError(f"{variable}: {value} is not a folder")
    return folder


#: The folder of more vectors. Its files replace those of the same name, which are parts of them.
_MORE = extra_folder("SYNREPL_TEST_VECTORS")

_FOLDERS = (*([_MORE] if _MORE else []), VECTORS)


def path_of(name: str) -> Path:
    """The path of a file, such as ``auth/random_v10.jsonl.gz``."""
    return next((path for folder in _FOLDERS if (path := folder / name).exists()), VECTORS / name)


def lines(name: str) -> Iterator[dict[str, Any]]:
    """The rows of a file, such as ``auth/random_v10.jsonl.gz``."""
    path = path_of(name)
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for line in file:
            yield json.loads(line)


def files(pattern: str) -> list[str]:
    """The names of the files that match a pattern, such as ``auth/random_*``."""
    return sorted(
        {str(path.relative_to(folder)) for folder in _FOLDERS for path in folder.glob(pattern)}
    )
