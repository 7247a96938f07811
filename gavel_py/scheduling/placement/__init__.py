"""Placement: the GPUs of each gang, as a pure function of nodes, gangs and the GPUs that they held before.

`topology` numbers nodes and GPUs, `gangs` holds gangs as arrays, `free_gpus` finds the best fit, `assign` places the gangs, and
`migration` moves gangs to make room.
"""

from gavel_py.scheduling.placement.assign import Gang, Places, hardest_first, largest_free, place, place_batch, place_on_type

__all__ = ["Gang", "Places", "hardest_first", "largest_free", "place", "place_batch", "place_on_type"]
