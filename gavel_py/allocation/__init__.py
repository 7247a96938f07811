"""A problem and a policy in, a proven `Allocation` out, and explanations of it.

Entry points: `solver.solve`, `solver.Solver`, `explain`. The package is independent of rounds.
"""

from gavel_py import names_in

__getattr__, __dir__, __all__ = names_in(__name__, "gavel_py.estimates.regret")
