"""The input of a solve: jobs, nodes and tenants as records, and the `AllocationProblem` of arrays built from them.

Entry points: `problem.AllocationProblem`, `job.Job`, `cluster.Cluster`. Throughputs arrive as arrays or through the `Profile`
protocol; the package is independent of policies and programs.
"""

from gavel_py import names_in

__getattr__, __dir__, __all__ = names_in(__name__)
