"""Sweeps: grids of simulations or static solves, run by many processes, with each cell stored as it ends.

Entry points: `sweep` and `plan_sweep` in `planning`. Cells identify themselves by a checksum of their content, so that a stored
cell is not run again. The package does not know the command line.
"""

from gavel_py.sweeps.dispatcher import Progress
from gavel_py.sweeps.local import dask_executor
from gavel_py.sweeps.planning import SweepPlan, check_table, plan_sweep, sweep, write_table

__all__ = ["Progress", "SweepPlan", "check_table", "dask_executor", "plan_sweep", "sweep", "write_table"]
