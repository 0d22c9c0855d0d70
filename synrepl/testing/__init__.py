"""For tests: real servers, and fakes that are checked against the real thing.

Applications import from here what ``docs/testing.md`` shows.
"""

from synrepl.testing.postgres import DatabaseTemplate, fresh_database, with_durable_server

__all__ = ["DatabaseTemplate", "fresh_database", "with_durable_server"]
