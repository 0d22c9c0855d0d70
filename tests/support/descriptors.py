"""Finds the file descriptors of this process, to close or replace them behind their owner's back."""

from __future__ import annotations

import os
from pathlib import Path

_OPEN = Path("/proc/self/fd")


def descriptor_of(path: Path) -> int:
    """The descriptor under which this process has a file open, exactly once."""
    real = str(path.resolve())
    (found,) = (link for link in _OPEN.iterdir() if link.is_symlink() and os.readlink(link) == real)
    return int(found.name)
