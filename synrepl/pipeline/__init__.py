"""The data pipeline: streams into Spark and into a lake, and jobs over them.

Requires the extra ``synrepl[spark]``. Import what your own queries need from here; a name is loaded
when it is first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from synrepl.pipeline.datasource import register as register
    from synrepl.pipeline.source.progress import tokens_behind as tokens_behind
    from synrepl.pipeline.views.by_key import changes_by_key as changes_by_key
    from synrepl.pipeline.views.by_key import latest_by_key as latest_by_key
    from synrepl.pipeline.views.follow import upsert_into as upsert_into
else:
    from synrepl.core.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "synrepl.pipeline.datasource": ("register",),
            "synrepl.pipeline.source.progress": ("tokens_behind",),
            "synrepl.pipeline.views.by_key": ("changes_by_key", "latest_by_key"),
            "synrepl.pipeline.views.follow": ("upsert_into",),
        },
    )
