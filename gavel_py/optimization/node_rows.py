"""CPUs and host memory as rows of the program: jobs that need many of them per GPU leave GPUs without."""

from __future__ import annotations

import numpy as np

from gavel_py.optimization.rules import Load
from gavel_py.problem.problem import AllocationProblem

__all__ = ["node_rows"]


def node_rows(problem: AllocationProblem) -> list[Load]:
    """Return Σ_i s_i·cpus_per_gpu_i·X_ij <= CPUs of type j, and the same for memory, where jobs could need more than there is.

    None for a problem that was not built from a cluster. That each gang finds all it needs on its nodes is for placement to see to.
    """
    hosts = problem.hosts
    if hosts is None:
        return []
    rows = []
    for name, per_gpu, most in (("CPUs", hosts.cpus_per_gpu, hosts.cpus), ("memory", hosts.memory_gb_per_gpu, hosts.memory_gb)):
        for j in np.flatnonzero(np.isfinite(most)).tolist():
            needs = np.where(problem.runnable[:, j], per_gpu, 0.0)
            if needs.max(initial=0.0) * problem.capacities[j] > most[j]:
                text = f"the {name} of the nodes with {problem.accelerator_types[j]}"
                rows.append(Load(text, {j: needs * problem.num_gpus}, len(most), float(most[j])))
    return rows
