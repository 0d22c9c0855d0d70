"""The psycopg2 driver behind the interfaces of :mod:`synrepl.storage.database`: connections, transactions, errors.

The connection pools of the daemons and the tasks of the pipeline are built on it.
"""
