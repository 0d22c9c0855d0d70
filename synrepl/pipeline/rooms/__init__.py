"""Rooms on Spark: their tables as DataFrames, and jobs that apply the rules of rooms to them.

The tables (:mod:`.tables`) are the same whether they were read in place (:mod:`.reading`), from synrepl's own
database or from a real Synapse's, or made by other means, such as from a lake. A job is a file with a
``transform`` of the tables, and the :class:`.spark_room_job.SparkRoomJob` that declares it.
"""
