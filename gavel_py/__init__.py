"""gavel_py decides which job gets which GPU type, for how much of the time, and on which GPUs.

>>> import gavel_py as gp
>>> problem = gp.AllocationProblem.from_arrays([[4.0, 1.0], [4.0, 3.0]], [1, 1], accelerator_types=["v100", "k80"])
>>> gp.solve(problem, "max_total_throughput", normalized=False).time_fractions
array([[1., 0.],
       [0., 1.]])

Every public name is an attribute of this package (gp.solve) and of the package below that it belongs to (gp.allocation.solve):

    problem               Job, JobSet, Cluster, Node, TenantTree, AllocationProblem
    throughput_profiles   ThroughputProfile, ThroughputStore, Measurement, AcceleratorTable, extend_profile
    policies              Policy and its families, Then, WeightedSum, policy_names; constraints: Quota, CostBudget, Deadline, ...
    allocation            solve, Solver, Allocation, explain, formulation
    scheduling            RoundScheduler, Round, Assignment, RoundDemand, DeliveryReport
    estimates             EstimatedProfile, ThroughputLearner, check_estimates, sensitivity
    simulator             simulate, Simulation, SimulationResult, NodeFailures
    serving               Service, ServingProfile, plan_serving, plan_over_time, RequestTrace, simulate_requests, place_models
    service               Session
    workloads             read_trace, generate_trace, describe_trace, Trace, Submission
    sweeps                sweep, plan_sweep, dask_executor
    planning              plan_from_trace, plan_fleet, read_catalog, read_demand
    report                write_report, AllocationView, plot_rounds, Run, read_runs
    integrations.kueue    read_kueue, kueue_overview, forecast_kueue
    integrations.slurm    SlurmDriver, SlurmSettings, slurm_run
    testing               check_policy
    errors                GavelError and its subclasses

dir(gp.simulator) lists the names of one package, help(gp.simulate) explains a name. Names are imported on first use, which keeps
`import gavel_py` fast.
"""

from __future__ import annotations

import ast
import importlib
import logging
import pkgutil
from collections.abc import Callable

__version__ = "0.1.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())  # log records appear only if the calling program configures logging


PACKAGES = (
    *("allocation", "errors", "estimates", "integrations", "planning", "policies", "problem", "report", "scheduling", "service"),
    *("serving", "simulator", "sweeps", "testing", "throughput_profiles", "workloads"),
)
"""Packages and modules of public names."""


def _read_stub() -> dict[str, str]:
    """Return {public name: module that defines it}, from the imports in `__init__.pyi`."""
    stub = ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"")
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom) and str(node.module).startswith(__name__)]
    return {name.name: str(node.module) for node in imports for name in node.names}


_MODULE_OF = _read_stub()

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    if name in PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULE_OF:
        from difflib import get_close_matches

        close = [] if name.startswith("_") else get_close_matches(name, _MODULE_OF, n=1)
        hint = f". Did you mean: {close[0]!r}?" if close else ""
        # As the interpreter words it, which without the object adds no suggestion of its own: others show the message only.
        raise AttributeError(f"module 'gavel_py' has no attribute {name!r}{hint}", name=name, obj=None)
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *PACKAGES})


def names_in(package: str, *also: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package that imports its public names on first use.

    also: further packages or modules of which it offers the names.
    """
    names = sorted(
        name for name, module in _MODULE_OF.items() if f"{module}.".startswith(tuple(f"{each}." for each in (package, *also)))
    )

    def get(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=None)
        return __getattr__(name)

    return get, lambda: names, names
