"""The tests. Hypothesis must not judge the speed of a machine that is busy."""

from hypothesis import HealthCheck, settings

settings.register_profile("synrepl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("synrepl")
