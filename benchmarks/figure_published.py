"""Published values to compare with ours: {x: {curve: hours}}, means over seeds 0 to 2.

Sources: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads" (OSDI 2020), section 7 and
figures 8 and 9, and the means printed in `continuous_jobs_multigpu.ipynb` of https://github.com/stanford-futuredata/gavel (MIT).
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["FIFO", "GANGS", "MAKESPAN", "SINGLE", "Published"]

Published = Mapping[float, Mapping[str, float]]

SINGLE: Published = {5.6: {"agnostic": 96.0, "aware": 29.0, "sharing": 19.6}}

GANGS: Published = {
    1.0: {"agnostic": 24.14, "aware": 17.22, "gandiva": 17.58, "sharing": 17.83},
    1.8: {"agnostic": 24.56, "aware": 17.76, "gandiva": 19.27, "sharing": 17.50},
    2.2: {"agnostic": 26.34, "aware": 20.53, "gandiva": 23.94, "sharing": 19.37},
    2.6: {"agnostic": 72.43, "aware": 32.52, "gandiva": 57.96, "sharing": 25.54},
}

FIFO: Published = {
    1.0: {"agnostic": 18.36, "aware": 15.83, "sharing": 15.83},
    1.8: {"agnostic": 28.50, "aware": 18.52, "sharing": 18.43},
    2.0: {"agnostic": 31.08, "aware": 20.38, "sharing": 20.25},
    2.2: {"agnostic": 114.42, "aware": 23.77, "sharing": 23.43},
}

MAKESPAN: Published = {700: {"fifo-bug": 619.5, "gandiva": 347.3, "aware": 244.2}}
