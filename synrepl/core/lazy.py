"""Lazy imports for packages: names are imported on first use (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(
    package: str, places: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make the ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    :param package: its ``__name__``
    :param places: by module, the names that it defines
    """
    module_of = {name: module for module, names in places.items() for name in names}

    def get(name: str) -> Any:
        module = sys.modules[package]
        if name not in module_of:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}", name=name, obj=module
            )
        value = getattr(importlib.import_module(module_of[name]), name)
        setattr(module, name, value)  # __getattr__ is not called again for it
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return get, names, sorted(module_of)
