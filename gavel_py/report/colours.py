"""One colour for each job, such that neighbours differ, also for those who see fewer colours."""

from __future__ import annotations

import numpy as np

from gavel_py.report.round_grid import IDLE, RoundGrid

__all__ = ["COLOURS", "colours_of", "is_dark"]

COLOURS = (
    "#77AADD",
    "#EE8866",
    "#EEDD88",
    "#004488",
    "#FFAABB",
    "#44BB99",
    "#994455",
    "#99DDFF",
    "#BBCC33",
    "#117733",
)
"""Paul Tol's light colours, made to be filled and written on, and three dark ones of his (https://personal.sron.nl/~pault)."""


def colours_of(grid: RoundGrid) -> list[str]:
    """Return a colour for each job: the next in turn that no earlier neighbour has, on the next GPU or in the next round."""
    neighbours = _neighbours(grid)
    chosen: list[int] = []
    for job in range(len(grid.job_ids)):
        taken = {chosen[other] for other in neighbours.get(job, ()) if other < job}
        turns = [(job + more) % len(COLOURS) for more in range(len(COLOURS))]
        chosen.append(next((turn for turn in turns if turn not in taken), turns[0]))
    return [COLOURS[turn] for turn in chosen]


def is_dark(colour: str) -> bool:
    """Say whether white letters are easier to read on it than black ones."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    luminance: float = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    return luminance < 0.18  # there both contrasts are equal


def _neighbours(grid: RoundGrid) -> dict[int, set[int]]:
    """The jobs that each job touches."""
    jobs = grid.jobs
    aside = np.stack([jobs[:, :-1].ravel(), jobs[:, 1:].ravel()])
    below = np.stack([jobs[:-1].ravel(), jobs[1:].ravel()])
    pairs = np.concatenate([aside, below], axis=1)
    pairs = np.unique(pairs[:, (pairs != IDLE).all(axis=0) & (pairs[0] != pairs[1])], axis=1)
    found: dict[int, set[int]] = {}
    for one, other in pairs.T.tolist():
        found.setdefault(one, set()).add(other)
        found.setdefault(other, set()).add(one)
    return found
