"""Relative speeds of accelerators, from finished runs of jobs with the same name."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Mapping

from gavel_py.errors import Fault, GavelWarning, InputError
from gavel_py.throughput_profiles import Measurement, ThroughputProfile
from gavel_py.workloads.trace import Trace

JOB_NAME = "job_name"

SAME_WORK = 2.0
"""Ratio of the longest to the shortest run on the same GPUs above which runs of one name are probably not the same work."""


def relative_speeds(trace: Trace, name: str = "sacct", *, label: str = JOB_NAME) -> ThroughputProfile:
    """Return a profile of the jobs that ran under the same name on several accelerator types, in runs per minute.

    Runs of one name are assumed to do the same work, so that the ratio of two throughputs is the inverse ratio of the run times. A
    throughput is 1 divided by the median run time, in minutes, of the finished runs of a name with the same number of GPUs on the
    same type. Names that ran on only one type are left out, since they have no ratio.

    Args:
        trace: A trace with running times and accelerators, such as one from `sacct` with the column JobName.
        name: Name of the profile.
        label: The label of jobs that names their work.

    Raises:
        InputError: No name ran on two types.

    Warns:
        GavelWarning: Runs of a name on the same GPUs differ by more than a factor of 2, so they may not be the same work.
    """
    runs: dict[str, dict[tuple[str, float], list[float]]] = {}
    for submission in trace:
        work, seconds = dict(submission.labels).get(label), submission.run_seconds
        if work and seconds and submission.accelerator and submission.status == "passed":
            gang = submission.accelerator, submission.job.num_gpus
            runs.setdefault(work, {}).setdefault(gang, []).append(seconds)
    compared = {work: by_gang for work, by_gang in runs.items() if len({accelerator for accelerator, _ in by_gang}) > 1}
    if not compared:
        problem = f"has no two finished jobs of the same {label} on different accelerator types"
        needed = "the output of sacct needs the columns JobName, State, Elapsed, and AllocTRES with types of GPUs"
        raise InputError(Fault(trace.report.source or "trace", "", f"{problem}; {needed}"))
    _warn_of_variation(compared)
    measurements = [
        Measurement(
            job_type=work,
            num_gpus=num_gpus,
            accelerator=accelerator,
            steps_per_second=60 / statistics.median(seconds),
            source=f"median of {len(seconds)} finished runs" if len(seconds) > 1 else "1 finished run",
            unit="1/min",
        )
        for work, by_gang in sorted(compared.items())
        for (accelerator, num_gpus), seconds in sorted(by_gang.items())
    ]
    return ThroughputProfile(name, measurements, description="Relative speeds from running times of jobs with the same name")


def _warn_of_variation(runs: Mapping[str, Mapping[tuple[str, float], list[float]]]) -> None:
    varied = [work for work, gangs in runs.items() if any(max(each) > SAME_WORK * min(each) for each in gangs.values())]
    if varied:
        names = ", ".join(repr(work) for work in varied[:5]) + (f" and {len(varied) - 5} more" if len(varied) > 5 else "")
        text = f"runs on the same GPUs differ by more than a factor of {SAME_WORK:g}, so they may not be the same work: {names}"
        warnings.warn(text, GavelWarning, stacklevel=3)
