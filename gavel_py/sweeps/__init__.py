"""Sweeps: a grid of simulations or static solves, played by many processes, each cell stored as it ends.

spec: what is asked for; axes: traces, clusters and policies; grid: the cells, checked before any is played; cell: one of them, and
how it is played; local: the processes that play cells, or a Dask cluster; dispatcher: hands cells out, and stores them; planning:
the whole sweep, its estimate and its tables.
"""

from gavel_py.sweeps.dispatcher import Progress
from gavel_py.sweeps.local import dask_executor
from gavel_py.sweeps.planning import SweepPlan, check_table, plan_sweep, sweep, write_table

__all__ = ["Progress", "SweepPlan", "check_table", "dask_executor", "plan_sweep", "sweep", "write_table"]
