"""Sweeps: grids of simulations or static solves, run by many processes, with each cell stored as it ends.

Entry points: `sweep` and `plan_sweep` in `planning`. Cells identify themselves by a checksum of their content, so that a stored
cell is not run again. The package is independent of the command line.
"""

from gavel_py import names_in

__getattr__, __dir__, __all__ = names_in(__name__)
