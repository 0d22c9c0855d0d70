"""The PostgreSQL driver in the words of :mod:`synrepl.storage.database`: connections, transactions, errors.

Below everything that talks to a database: the pools of the daemons and the tasks of the pipeline.
"""
