"""Systems that run jobs; a package for each.

`slurm` manages a partition of a Slurm cluster, driven in rounds by a `RoundScheduler`; its log has what a `Run` needs. `kueue`
reads what Kueue does, and writes advice. An integration does not depend on simulators, sweeps or traces.
"""

from importlib import import_module

from gavel_py import names_in

_public, __dir__, __all__ = names_in(__name__)


def __getattr__(name: str) -> object:
    return import_module(f"{__name__}.{name}") if name in ("kueue", "slurm") else _public(name)
