"""The tests. Hypothesis must not judge the speed of a machine that is busy."""

import atexit
import os
import shutil
import sys
import tempfile

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

# Tests start hundreds of Python processes. Where Python may not leave compiled modules beside their
# sources, as in many containers, each process would compile everything it imports, which doubles
# the time it takes to start. They share a directory instead; it is removed at the end of the run.
if sys.dont_write_bytecode and not sys.pycache_prefix:
    _compiled = tempfile.mkdtemp(prefix="synrepl-test-pycache-")
    atexit.register(shutil.rmtree, _compiled, ignore_errors=True)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = _compiled

# Configurations and DSNs that tests write hold passwords, so nobody else may read them.
os.umask(0o077)
