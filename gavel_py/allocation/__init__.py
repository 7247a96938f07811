"""A problem and a policy in, a proven `Allocation` out, and explanations of it.

Entry points: `solver.solve`, `solver.Solver`, `explain`. The package knows nothing of rounds.
"""
