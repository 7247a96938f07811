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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gavel_py.allocation import Allocation, AllocationStatus, Route
    from gavel_py.allocator import Solver, solve
    from gavel_py.cluster import Cluster
    from gavel_py.errors import (
        Fault,
        GavelError,
        GavelWarning,
        InputError,
        MissingThroughputError,
        ProofError,
        SolverError,
        UnknownNameError,
    )
    from gavel_py.job_arrays import Profile
    from gavel_py.job_classes import JobClasses
    from gavel_py.jobs import Job, JobSet
    from gavel_py.nodes import AcceleratorType, Node
    from gavel_py.policies import (
        DemandPolicy,
        OrderedPolicy,
        Policy,
        PolicyOption,
        SumPolicy,
        option,
        policy_class,
        policy_names,
        policy_options,
        resolve_policy,
    )
    from gavel_py.problem import AllocationProblem
    from gavel_py.program import Program
    from gavel_py.proof import Proof
    from gavel_py.rounds import Assignment, DeliveryReport, Round, RoundScheduler
    from gavel_py.throughput_profiles import Measurement, ThroughputProfile, ThroughputStore

__version__ = "0.1.0"

_HOMES = {
    "allocation": ("Allocation", "AllocationStatus", "Route"),
    "allocator": ("Solver", "solve"),
    "cluster": ("Cluster",),
    "errors": (
        "Fault",
        "GavelError",
        "GavelWarning",
        "InputError",
        "MissingThroughputError",
        "ProofError",
        "SolverError",
        "UnknownNameError",
    ),
    "job_arrays": ("Profile",),
    "job_classes": ("JobClasses",),
    "jobs": ("Job", "JobSet"),
    "nodes": ("AcceleratorType", "Node"),
    "policies": (
        "DemandPolicy",
        "OrderedPolicy",
        "Policy",
        "PolicyOption",
        "SumPolicy",
        "option",
        "policy_class",
        "policy_names",
        "policy_options",
        "resolve_policy",
    ),
    "problem": ("AllocationProblem",),
    "program": ("Program",),
    "proof": ("Proof",),
    "rounds": ("Assignment", "DeliveryReport", "Round", "RoundScheduler"),
    "throughput_profiles": ("Measurement", "ThroughputProfile", "ThroughputStore"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AcceleratorType",
    "Allocation",
    "AllocationProblem",
    "AllocationStatus",
    "Assignment",
    "Cluster",
    "DeliveryReport",
    "DemandPolicy",
    "Fault",
    "GavelError",
    "GavelWarning",
    "InputError",
    "Job",
    "JobClasses",
    "JobSet",
    "Measurement",
    "MissingThroughputError",
    "Node",
    "OrderedPolicy",
    "Policy",
    "PolicyOption",
    "Profile",
    "Program",
    "Proof",
    "ProofError",
    "Round",
    "RoundScheduler",
    "Route",
    "Solver",
    "SolverError",
    "SumPolicy",
    "ThroughputProfile",
    "ThroughputStore",
    "UnknownNameError",
    "option",
    "policy_class",
    "policy_names",
    "policy_options",
    "resolve_policy",
    "solve",
]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'gavel_py' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"gavel_py.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
