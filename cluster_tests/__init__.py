"""Tests on Spark clusters (a standalone one, a local cluster, a Spark Connect server), and with a Hive metastore.

Each starts several JVMs.
"""

import tests as tests  # its settings for processes and JVMs hold here too
