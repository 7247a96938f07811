"""Moving gangs that are not of their kind, when all have their places."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gavel_py.rounds.kinds import Kind
from gavel_py.rounds.settling import Settlement

__all__ = ["put_right"]

MOST_EXCHANGED = 32
"""Gangs that are tried at once: each try takes all of them anew, and leaves out those for which it has failed."""


def put_right(settled: Settlement) -> None:
    """Move gangs of the wrong kind to free GPUs, their own included, or on each other's; nobody else moves.

    Those that matter most come first. Who moves is of its kind then; the others stay where they are.
    """
    wrong = _wrong(settled)
    while wrong:
        right = _moved(settled, wrong) or _exchanged(settled, wrong)
        wrong = [gang for gang in wrong if gang not in right] if right else []


def _moved(settled: Settlement, wrong: Sequence[int]) -> set[int]:
    """The gangs for which free GPUs and their own were enough."""
    return {gang for gang in wrong if settled.free.any_left and not _failing(settled, [gang])}


def _exchanged(settled: Settlement, wrong: Sequence[int]) -> set[int]:
    """Gangs that have changed places with each other."""
    groups = [wrong[start : start + MOST_EXCHANGED] for start in range(0, len(wrong), MOST_EXCHANGED)]
    return set().union(*(_exchanged_among(settled, group) for group in groups))


def _exchanged_among(settled: Settlement, wrong: Sequence[int]) -> set[int]:
    """Gangs that have changed places all at once: those that cannot be of their kind then are left out, and it is tried anew."""
    crowd = settled.crowd
    gangs = sorted(wrong, key=lambda gang: (crowd.kinds[gang] == Kind.APART, -crowd.sizes[gang]))
    while len(gangs) > 1:
        failing = _failing(settled, gangs)
        if not failing:
            return set(gangs)
        gangs = [gang for gang in gangs if gang not in failing]
    return set()


def _failing(settled: Settlement, gangs: Sequence[int]) -> set[int]:
    """Place gangs anew beside the others, all in their kind; if that fails for some, return these, and all stay."""
    free, needs = settled.free, settled.crowd.needs
    before = {gang: settled.held_by(gang) for gang in gangs}
    for gang in gangs:
        free.give_back(before[gang], needs[gang])
    after: dict[int, list[int]] = {}
    for gang in gangs:
        gpus = settled.of_kind(gang)
        if gpus is not None:
            free.take(gpus, needs[gang])
            after[gang] = gpus
    for gang, gpus in after.items():
        free.give_back(gpus, needs[gang])
    if len(after) < len(gangs):
        for gang in gangs:
            free.take(before[gang], needs[gang])
        return set(gangs) - after.keys()
    for gang in gangs:
        settled.give(gang, after[gang])
    return set()


def _wrong(settled: Settlement) -> list[int]:
    """The gangs that have a place of the wrong kind."""
    crowd, layout = settled.crowd, settled.free.layout
    wanted = crowd.kinds != Kind.ANY
    if not wanted.any():
        return []
    stay = (wanted & settled.stays)[crowd.owners]
    found = [(gang, gpu) for gang, gpus in settled.found.items() if wanted[gang] for gpu in gpus]
    owners, gpus = np.concatenate(
        [(crowd.owners[stay], crowd.held[stay]), np.array(found, dtype=np.int64).reshape(-1, 2).T], axis=1
    )
    pairs = np.unique(owners * len(layout.sizes) + layout.node_of[gpus])
    nodes = np.bincount(pairs // len(layout.sizes), minlength=len(crowd))
    is_apart = nodes > crowd.fewest
    wrong: list[int] = np.flatnonzero(wanted & (nodes > 0) & (is_apart != (crowd.kinds == Kind.APART))).tolist()
    return wrong
