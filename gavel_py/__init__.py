"""gavel_py decides which job gets which GPU type, for how much of the time, and on which GPUs.

Everything public is here; each name is imported when it is first used, so that `import gavel_py` is quick.

>>> import gavel_py as gp
>>> problem = gp.AllocationProblem.from_arrays([[4.0, 1.0], [4.0, 3.0]], [1, 1], accelerator_types=["v100", "k80"])
>>> gp.solve(problem, "max_total_throughput", normalized=False).time_fractions
array([[1., 0.],
       [0., 1.]])
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gavel_py.allocation.explain import Explanation, explain
    from gavel_py.allocation.result import Allocation, Route
    from gavel_py.allocation.solver import Solver, solve
    from gavel_py.errors import (
        ConflictError,
        Fault,
        GavelError,
        GavelWarning,
        InputError,
        MissingThroughputError,
        PolicyContractError,
        PolicyError,
        ProofError,
        SlurmError,
        SolverError,
        UnknownNameError,
    )
    from gavel_py.integrations.slurm import (
        SlurmApplied,
        SlurmCommands,
        SlurmDecided,
        SlurmDriver,
        SlurmPicture,
        SlurmSettings,
        TypeRule,
        WallClock,
        slurm_plugin,
        slurm_run,
    )
    from gavel_py.optimization.checking.certificates import Proof
    from gavel_py.optimization.formulation.colocation import Pairs
    from gavel_py.optimization.formulation.program import Program
    from gavel_py.optimization.job_classes import JobClasses
    from gavel_py.policies import (
        AllocationStatus,
        DemandPolicy,
        FormulaPolicy,
        OrderedPolicy,
        Policy,
        PolicyOption,
        SumPolicy,
        Then,
        WeightedSum,
        option,
        policy_class,
        policy_names,
        policy_options,
        policy_source,
        resolve_policy,
    )
    from gavel_py.policies.constraints import (
        Constraint,
        ConstraintOutcome,
        CostBudget,
        Deadline,
        Forbid,
        KeepRunning,
        MaxGpus,
        MinThroughput,
        Pin,
        Quota,
        Reserve,
        SwitchCost,
        read_constraints,
    )
    from gavel_py.problem.cluster import Cluster
    from gavel_py.problem.from_jobs import Profile
    from gavel_py.problem.job import Job, JobSet
    from gavel_py.problem.nodes import AcceleratorType, Node
    from gavel_py.problem.problem import AllocationProblem
    from gavel_py.problem.tenants import Tenant, TenantTree
    from gavel_py.report import check_plot, check_report, plot_rounds, write_report
    from gavel_py.report.runs import METRICS, OverTime, Run, Stay, read_failures, read_runs, write_runs
    from gavel_py.scheduling import Assignment, DeliveryReport, Lease, NodeState, Round, RoundScheduler, Wait
    from gavel_py.simulator import (
        Distribution,
        JobRecord,
        NodeFailures,
        NodeWindow,
        Outcome,
        RunRecorder,
        Simulation,
        SimulationResult,
        Summary,
        read_maintenance,
        record_run,
        simulate,
    )
    from gavel_py.sweeps import Progress, SweepPlan, check_table, dask_executor, plan_sweep, sweep, write_table
    from gavel_py.throughput_profiles import Measurement, ThroughputProfile, ThroughputStore
    from gavel_py.workloads import (
        Empirical,
        LogUniform,
        Submission,
        Trace,
        TraceReport,
        TraceSummary,
        assign_job_types,
        assume_durations,
        describe_trace,
        extend_profile,
        generate_trace,
        plot_trace,
        read_trace,
        trace_formats,
        trace_text,
    )

__version__ = "0.1.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())  # what is logged is shown only where the calling program asks for it

_HOMES = {
    "allocation.explain": (
        "Explanation",
        "explain",
    ),
    "allocation.result": (
        "Allocation",
        "Route",
    ),
    "allocation.solver": (
        "Solver",
        "solve",
    ),
    "errors": (
        "ConflictError",
        "Fault",
        "GavelError",
        "GavelWarning",
        "InputError",
        "MissingThroughputError",
        "PolicyContractError",
        "PolicyError",
        "ProofError",
        "SlurmError",
        "SolverError",
        "UnknownNameError",
    ),
    "integrations.slurm": (
        "SlurmApplied",
        "SlurmCommands",
        "SlurmDecided",
        "SlurmDriver",
        "SlurmPicture",
        "SlurmSettings",
        "TypeRule",
        "WallClock",
        "slurm_plugin",
        "slurm_run",
    ),
    "optimization.checking.certificates": ("Proof",),
    "optimization.formulation.colocation": ("Pairs",),
    "optimization.formulation.program": ("Program",),
    "optimization.job_classes": ("JobClasses",),
    "policies": (
        "AllocationStatus",
        "DemandPolicy",
        "FormulaPolicy",
        "OrderedPolicy",
        "Policy",
        "PolicyOption",
        "SumPolicy",
        "Then",
        "Wait",
        "WeightedSum",
        "option",
        "policy_class",
        "policy_names",
        "policy_options",
        "policy_source",
        "resolve_policy",
    ),
    "policies.constraints": (
        "Constraint",
        "ConstraintOutcome",
        "CostBudget",
        "Deadline",
        "Forbid",
        "KeepRunning",
        "MaxGpus",
        "MinThroughput",
        "Pin",
        "Quota",
        "Reserve",
        "SwitchCost",
        "read_constraints",
    ),
    "problem.cluster": ("Cluster",),
    "problem.from_jobs": ("Profile",),
    "problem.job": (
        "Job",
        "JobSet",
    ),
    "problem.nodes": (
        "AcceleratorType",
        "Node",
    ),
    "problem.problem": ("AllocationProblem",),
    "problem.tenants": (
        "Tenant",
        "TenantTree",
    ),
    "report": (
        "check_plot",
        "check_report",
        "plot_rounds",
        "write_report",
    ),
    "report.runs": (
        "METRICS",
        "OverTime",
        "Run",
        "Stay",
        "read_failures",
        "read_runs",
        "write_runs",
    ),
    "scheduling": (
        "Assignment",
        "DeliveryReport",
        "Lease",
        "NodeState",
        "Round",
        "RoundScheduler",
        "Wait",
    ),
    "simulator": (
        "Distribution",
        "JobRecord",
        "NodeFailures",
        "NodeWindow",
        "Outcome",
        "RunRecorder",
        "Simulation",
        "SimulationResult",
        "Summary",
        "read_maintenance",
        "record_run",
        "simulate",
    ),
    "sweeps": (
        "Progress",
        "SweepPlan",
        "check_table",
        "dask_executor",
        "plan_sweep",
        "sweep",
        "write_table",
    ),
    "throughput_profiles": (
        "Measurement",
        "ThroughputProfile",
        "ThroughputStore",
    ),
    "workloads": (
        "Empirical",
        "LogUniform",
        "Submission",
        "Trace",
        "TraceReport",
        "TraceSummary",
        "assign_job_types",
        "assume_durations",
        "describe_trace",
        "extend_profile",
        "generate_trace",
        "plot_trace",
        "read_trace",
        "trace_formats",
        "trace_text",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "METRICS",
    "AcceleratorType",
    "Allocation",
    "AllocationProblem",
    "AllocationStatus",
    "Assignment",
    "Cluster",
    "ConflictError",
    "Constraint",
    "ConstraintOutcome",
    "CostBudget",
    "Deadline",
    "DeliveryReport",
    "DemandPolicy",
    "Distribution",
    "Empirical",
    "Explanation",
    "Fault",
    "Forbid",
    "FormulaPolicy",
    "GavelError",
    "GavelWarning",
    "InputError",
    "Job",
    "JobClasses",
    "JobRecord",
    "JobSet",
    "KeepRunning",
    "Lease",
    "LogUniform",
    "MaxGpus",
    "Measurement",
    "MinThroughput",
    "MissingThroughputError",
    "Node",
    "NodeFailures",
    "NodeState",
    "NodeWindow",
    "OrderedPolicy",
    "Outcome",
    "OverTime",
    "Pairs",
    "Pin",
    "Policy",
    "PolicyContractError",
    "PolicyError",
    "PolicyOption",
    "Profile",
    "Program",
    "Progress",
    "Proof",
    "ProofError",
    "Quota",
    "Reserve",
    "Round",
    "RoundScheduler",
    "Route",
    "Run",
    "RunRecorder",
    "Simulation",
    "SimulationResult",
    "SlurmApplied",
    "SlurmCommands",
    "SlurmDecided",
    "SlurmDriver",
    "SlurmError",
    "SlurmPicture",
    "SlurmSettings",
    "Solver",
    "SolverError",
    "Stay",
    "Submission",
    "SumPolicy",
    "Summary",
    "SweepPlan",
    "SwitchCost",
    "Tenant",
    "TenantTree",
    "Then",
    "ThroughputProfile",
    "ThroughputStore",
    "Trace",
    "TraceReport",
    "TraceSummary",
    "TypeRule",
    "UnknownNameError",
    "Wait",
    "WallClock",
    "WeightedSum",
    "assign_job_types",
    "assume_durations",
    "check_plot",
    "check_report",
    "check_table",
    "dask_executor",
    "describe_trace",
    "explain",
    "extend_profile",
    "generate_trace",
    "option",
    "plan_sweep",
    "plot_rounds",
    "plot_trace",
    "policy_class",
    "policy_names",
    "policy_options",
    "policy_source",
    "read_constraints",
    "read_failures",
    "read_maintenance",
    "read_runs",
    "read_trace",
    "record_run",
    "resolve_policy",
    "simulate",
    "slurm_plugin",
    "slurm_run",
    "solve",
    "sweep",
    "trace_formats",
    "trace_text",
    "write_report",
    "write_runs",
    "write_table",
]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'gavel_py' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"gavel_py.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
