"""The data pipeline: streams into Spark and into a lake, and jobs over them.

Wants the extra ``synrepl[spark]``. Ask
:func:`synrepl.pipeline.session.available.require_spark` before importing anything else of it.
"""
