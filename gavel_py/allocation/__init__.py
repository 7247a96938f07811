"""A problem and a policy in, a proven `Allocation` out, and explanations of it.

Entry points: `allocator.solve`, `allocator.Solver`, `explain`. The package knows nothing of rounds.
"""

__all__: list[str] = []
