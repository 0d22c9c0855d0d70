"""synrepl: replication for facts kept in Postgres.

Append-only streams with several writers, fanned out to workers over the
replication protocol of Synapse (the Matrix server), old dialect and new.
"""

__version__ = "0.1.0"
