"""What a Slurm job is to the policy: its job type and its steps, by what it says, by rules of the site, or by default."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from gavel_py.integrations.slurm.comments import said_in
from gavel_py.integrations.slurm.records import SlurmJob
from gavel_py.integrations.slurm.settings import SlurmSettings, TypeRule
from gavel_py.integrations.slurm.values import printable
from gavel_py.throughput_profiles import ThroughputProfile

__all__ = ["JobKind", "kind_of", "most_measured"]


@dataclass(frozen=True)
class JobKind:
    """job_type: of the profile; total_steps: None where nobody has told them; is_known: whether the type is the job's own, and
    not the default; notes: what was not as it should be, in words.
    """

    job_type: str
    total_steps: float | None
    is_known: bool
    notes: tuple[str, ...] = ()


def kind_of(job: SlurmJob, profile: ThroughputProfile, settings: SlurmSettings) -> JobKind:
    """Return what a job is: by its comment, a rule for its name, its name if that is a type of the profile, or the default."""
    said = said_in(job.comment)
    notes = [said.wrong] if said.wrong else []
    rule = _rule(said.job_type or job.name, settings)
    wanted = [said.job_type, rule.job_type if rule is not None else "", "" if said.job_type else job.name]
    job_type = next((name for name in wanted if name in profile.job_types), None)
    is_known = job_type is not None
    if job_type is None:
        job_type = settings.default_type or most_measured(profile)
        what = f"type {said.job_type}" if said.job_type else f"a job named {printable(job.name) or '(nothing)'}"
        notes.append(f"{what} is not in profile {profile.name}; taken for {job_type}")
    steps = said.total_steps or (rule.total_steps if rule is not None else None)
    return JobKind(job_type, steps, is_known, tuple(notes))


def most_measured(profile: ThroughputProfile) -> str:
    """Return the job type of which most gang sizes are known, the first of equals: others can be estimated best from it."""
    sizes: dict[str, set[float]] = {job_type: set() for job_type in profile.job_types}
    for row in profile.rows:
        sizes[row.job_type].add(row.num_gpus)
    return max(sizes, key=lambda job_type: len(sizes[job_type]))


def _rule(name: str, settings: SlurmSettings) -> TypeRule | None:
    return next((rule for rule in settings.type_rules if fnmatchcase(name, rule.pattern)), None)
