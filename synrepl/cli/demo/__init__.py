"""``synrepl demo``: real processes, recorded traffic, failures, and a comparison of every fact.

In reading order: ``deployment`` (the processes and their configurations), ``traffic`` (what is
appended, and the threads that append it), ``recorder`` (what workers do with facts), ``scenario``
(what happens when), ``progress`` (what is shown meanwhile), ``verification`` (the comparison),
``report`` (the result), ``lake`` (the streams in Spark).
"""
