"""Systems that run jobs, driven in rounds by a `RoundScheduler`; a package for each.

`slurm` manages a partition of a Slurm cluster. An integration does not depend on simulators, sweeps or traces; its log has what a
`Run` needs.
"""

from importlib import import_module

from gavel_py import names_in

_public, __dir__, __all__ = names_in(__name__)


def __getattr__(name: str) -> object:
    return import_module(f"{__name__}.slurm") if name == "slurm" else _public(name)
