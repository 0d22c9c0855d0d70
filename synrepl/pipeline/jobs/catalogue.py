"""The catalogue of jobs."""

from __future__ import annotations

import difflib
from collections.abc import Collection

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


def find_job(name: str, others: Collection[str] = ()) -> LakeJob:
    """The job over a lake with this name.

    :param others: names of other jobs, for the message
    :raises NoSuchJob: there is none; the message suggests the most similar name
    """
    by_name = {job.name: job for job in JOBS}
    try:
        return by_name[name]
    except KeyError:
        names = [*by_name, *others]
        near = difflib.get_close_matches(name[:100], names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise NoSuchJob(job=name[:100], hint=hint, jobs=", ".join(names)) from None
