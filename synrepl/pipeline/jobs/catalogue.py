"""The catalogue of jobs."""

from __future__ import annotations

import difflib

from synrepl.core.errors import InputError
from synrepl.pipeline.jobs.activity import ACTIVITY
from synrepl.pipeline.jobs.heat import HEAT
from synrepl.pipeline.jobs.job import LakeJob
from synrepl.pipeline.jobs.lag import LAG
from synrepl.pipeline.jobs.rooms import ROOMS
from synrepl.pipeline.jobs.skew import SKEW

JOBS: tuple[LakeJob, ...] = (
    ACTIVITY,
    HEAT,
    LAG,
    ROOMS,
    SKEW,
)


class NoSuchJob(InputError):
    """there is no job {job!r}{hint}; there are {jobs}"""


def find_job(name: str) -> LakeJob:
    """The job over a lake with this name.

    :raises NoSuchJob: there is none; the message suggests the most similar name
    """
    by_name = {job.name: job for job in JOBS}
    try:
        return by_name[name]
    except KeyError:
        near = difflib.get_close_matches(name[:100], by_name, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise NoSuchJob(job=name[:100], hint=hint, jobs=", ".join(by_name)) from None
