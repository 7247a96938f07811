"""What is to be decided: jobs, nodes and tenants as records, and the `AllocationProblem` of arrays that is built from them.

Entry points: `problem.AllocationProblem`, `job.Job`, `cluster.Cluster`. Throughputs arrive as arrays or through the `Profile`
protocol; the package knows nothing of policies and programs.
"""
