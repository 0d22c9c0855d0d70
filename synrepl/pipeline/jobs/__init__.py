"""Jobs: questions to a lake, each a file, answered by Spark.

A job is one file with one ``transform`` of the rows it reads, and a :class:`.job.LakeJob` that
declares it; :mod:`.catalogue` has a line for each. To add one, add those two.
"""
