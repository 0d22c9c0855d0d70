"""Jobs: questions to a lake, answered by Spark.

A job is a file with a ``transform`` of the rows it reads and the :class:`.job.LakeJob` that declares
it. To add a job, add such a file, and a line in :mod:`.catalogue`.
"""
