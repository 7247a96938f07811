"""The options of a simulation: what it assumes of jobs that run, and what else its caller chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import ConfigDict, Field, PlainValidator

from gavel_py.errors import refuse
from gavel_py.io.records import Finite, Flag, Natural, Options, Seconds, SecondsAboveZero, command_option, part_or
from gavel_py.policies import Policy
from gavel_py.report.runs.summary import JobWindow, job_window
from gavel_py.scheduling import Assignment, Round
from gavel_py.scheduling.options import option, why_rounds
from gavel_py.simulator.node_events import NodeFailures, NodeWindow
from gavel_py.simulator.results import JobRecord

if TYPE_CHECKING:
    from gavel_py.estimates.learning import Explore, ThroughputLearner

    Learn: TypeAlias = ThroughputLearner | Explore | None
else:
    Learn = Any  # the learner is imported where it is used

JobFailures = float | Literal["recorded"]
Estimates = Literal["exact", "recorded"]
Starts = Callable[[float, Mapping[str, Assignment]], None]
Gangs = Callable[[float, Mapping[str, tuple[str, Mapping[str, int]] | None]], None]


class ExecutionOptions(Options):
    """What a simulation assumes of jobs while they run."""

    label: ClassVar[str] = "simulation"

    starts_between_rounds: Flag = command_option(
        False,
        "Start waiting jobs on idle GPUs at once, not only when rounds begin. That is when jobs arrive, GPUs become free or nodes "
        "return (`RoundScheduler.start_waiting`).",
        "Rounds",
    )
    interference: Annotated[Finite, Field(ge=0, lt=1)] = command_option(
        0.0, "Fraction of its speed that a fractional job loses to each other job on its GPU.", "Model", metavar="P"
    )
    job_failures: Annotated[JobFailures, part_or("recorded", zero=True)] = option(
        0.0, 'Probability that an attempt of a job fails, at a random point of its work, or "recorded" for failures of the trace.'
    )
    checkpoint_seconds: SecondsAboveZero | None = option(
        None,
        "Work between two checkpoints of a job. None for the starts of rounds; 360 s in event-driven mode.",
    )
    estimates: Estimates = command_option(
        "exact",
        "What policies know about durations. That is all, or the steps that fit the estimated duration in the trace.",
        "Model",
    )


class UnsavedOptions(Options):
    """What the caller of a simulation passes again to `Simulation.load`, since no file can hold it."""

    label: ClassVar[str] = "simulation"

    learn: Learn = option(
        None,
        "A `ThroughputLearner` that the scheduler uses instead of the profile, which then gives the true throughputs; or the "
        'exploration of a new learner: "optimistic", "median", or a share of the GPUs.',
    )
    on_record: Callable[[JobRecord], None] | None = option(
        None, "Called with the record of each job that leaves; records are then not kept."
    )
    on_round: Callable[[Round], None] | None = option(None, "Called with each round.")
    on_starts: Starts | None = option(None, "Called with the time and {job_id: Assignment} of jobs that start between rounds.")
    on_gangs: Gangs | None = option(
        None,
        "Called at each decision with its time and {job_id: (type, {node: GPUs})} of jobs that start there, None for jobs that "
        "stop; in event-driven mode much faster than on_round.",
    )


class SimulationOptions(UnsavedOptions, ExecutionOptions):
    """What the caller of a simulation chooses, besides the options of its scheduler (`SchedulerOptions`)."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    node_failures: NodeFailures | None = option(None, "Random failures of nodes.")
    maintenance: Annotated[Iterable[NodeWindow], PlainValidator(tuple)] = option((), "Windows in which nodes are down.")
    measure_jobs: Annotated[JobWindow | None, PlainValidator(job_window)] = option(
        None,
        "(first, end), the range of jobs that the summary covers, by arrival from 0, `end` excluded. Other jobs run too until the "
        "last of these has left; the simulation ends with that round.",
    )
    start_seconds: Seconds | None = option(
        None, "When the clock starts; jobs that have arrived before are waiting then. None to start with the first job."
    )
    seed: Natural = command_option(0, "Seed of all random choices.", "Run", metavar="N")
    allow_unknown_types: Flag = option(False, "Whether to leave out GPUs of types that the profile lacks, as in `RoundScheduler`.")

    @property
    def needs_scheduler(self) -> bool:
        """Whether a simulation needs the decisions of a scheduler as such: callers see them, it learns, or nodes change."""
        return any((self.on_round, self.on_starts, self.learn, self.node_failures, self.maintenance))

    def check_mode(self, policy: Policy, round_seconds: float | None) -> None:
        """Raise `InputError` for event-driven mode with a policy that needs rounds, or with starts between rounds."""
        no_rounds, why = round_seconds is None, why_rounds(policy)
        text = "must be False in event-driven mode, where jobs start at any time"
        refuse(
            "simulation",
            (no_rounds and why, "round_seconds", f"must be given for {policy.name}, {why}"),
            (no_rounds and self.starts_between_rounds, "starts_between_rounds", text),
        )
