"""Systems that run jobs, driven in rounds by a `RoundScheduler`; a package for each.

`slurm` manages a partition of a Slurm cluster. An integration does not depend on simulators, sweeps or traces; its log has what a
`Run` needs.
"""
