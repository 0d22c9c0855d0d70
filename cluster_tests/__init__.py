"""Tests on Spark clusters (a standalone one, a local cluster, a Spark Connect server), with a Hive metastore, and a connector for S3.

Each starts several JVMs.
"""

import tests as tests  # its settings for processes and JVMs hold here too
