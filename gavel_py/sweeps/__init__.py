"""Sweeps: grids of simulations or static solves, run by many processes, with each cell stored as it ends.

Entry points: `sweep` and `plan_sweep` in `planning`. Cells identify themselves by a checksum of their content, so that a stored
cell is not run again. The package does not know the command line.
"""
