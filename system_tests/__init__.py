"""Tests of whole systems: daemons and commands as processes, standbys, Spark, and a browser.

What runs inside the test's own process, beside a PostgreSQL or a Redis, is in ``tests``.
"""

import tests as tests  # its settings for processes and JVMs hold here too
