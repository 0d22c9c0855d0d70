"""The tests. Hypothesis must not judge the speed of a machine that is busy."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("synrepl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("synrepl")

# A JVM of the tests does little, and not for long: to compile it well, and to verify all of
# Spark, costs more than it saves.
_JVM = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
)
for _name in "SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS":
    os.environ.setdefault(_name, " ".join(_JVM))

# Configurations and DSNs that tests write hold passwords, so nobody else may read them.
os.umask(0o077)
