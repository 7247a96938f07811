"""Sweeps: a grid of simulations or static solves, played by many processes, each cell stored as it ends.

spec, settings: what is asked for; policy_axis, trace_axis, cluster_axis: its axes, of choices (parts); grid: the cells; checking:
before any is played; scenario, playing, solving: what happens in one; local, on_dask: who plays them; dispatching: handing them
out; planning: all of it; estimating, progress, tables, versions: what is told of it.
"""

from gavel_py.sweeps.dispatcher import Progress
from gavel_py.sweeps.local import dask_executor
from gavel_py.sweeps.planning import SweepPlan, check_table, plan_sweep, sweep, write_table

__all__ = ["Progress", "SweepPlan", "check_table", "dask_executor", "plan_sweep", "sweep", "write_table"]
