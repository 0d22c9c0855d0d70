"""The data pipeline: streams into Spark and into a lake, and jobs over them.

Requires the extra ``synrepl[spark]``. Import what your own queries need from here; a name is loaded
when it is first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from synrepl.pipeline.datasource import register as register
    from synrepl.pipeline.source.progress import tokens_behind as tokens_behind
else:
    from synrepl.core.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "synrepl.pipeline.datasource": ("register",),
            "synrepl.pipeline.source.progress": ("tokens_behind",),
        },
    )
