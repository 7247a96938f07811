"""Mechanisms: rules that select the jobs of a round and their accelerator types, as pure functions of a `RoundDemand`.

`demand` defines demands, selections and scores; scores include the cost of a restart (`hysteresis_of`). `rules` has the default
rule, improved by `local_search`, and Gavel's published rule; `elastic` also chooses numbers of GPUs. Installed packages offer
mechanisms as entry points of the group `gavel_py.mechanisms`; a user's own mechanism is named package.module:name.
"""

from gavel_py.scheduling.mechanism.rules import NAMES, SIZING, chooses_gpus, resolve_mechanism

__all__ = ["NAMES", "SIZING", "chooses_gpus", "resolve_mechanism"]
