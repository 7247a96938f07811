"""How long generated jobs run: log-uniform in pieces, or drawn from what was seen."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError

__all__ = ["PUBLISHED_DURATIONS", "Empirical", "LogUniform"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LogUniform:
    """Durations whose logarithm is uniform between two bounds, one of several pieces with a probability each.

    pieces: (weight, shortest, longest) in seconds; weights need not sum to 1.

    >>> LogUniform(((1.0, 60.0, 3600.0),)).mean_seconds
    864.6...
    """

    pieces: tuple[tuple[float, float, float], ...]

    def __post_init__(self) -> None:
        if not self.pieces:
            raise InputError(Fault("durations", "pieces", "must name at least one piece, (weight, shortest, longest)"))
        for weight, shortest, longest in self.pieces:
            if not (0 < weight < math.inf and 0 < shortest <= longest < math.inf):
                problem = f"must have a weight above 0 and 0 < shortest <= longest, seconds, found {(weight, shortest, longest)!r}"
                raise InputError(Fault("durations", "pieces", problem))

    @property
    def mean_seconds(self) -> float:
        """The expected duration: (b - a) / log(b/a) for a piece from a to b."""
        means = [(b - a) / math.log(b / a) if b > a else a for _, a, b in self.pieces]
        weights = [weight for weight, _, _ in self.pieces]
        return sum(w * m for w, m in zip(weights, means, strict=True)) / sum(weights)

    def draw(self, pieces: Floats, places: Floats) -> Floats:
        """Return N durations from 2 N numbers in [0, 1): the first choose pieces, the second the places in them."""
        weights = np.array([weight for weight, _, _ in self.pieces])
        chosen = np.searchsorted(np.cumsum(weights[:-1] / weights.sum()), pieces, side="right")
        low = np.log([a for _, a, _ in self.pieces])[chosen]
        high = np.log([b for _, _, b in self.pieces])[chosen]
        return np.exp(low + (high - low) * places)


@dataclass(frozen=True, init=False)
class Empirical:
    """Durations drawn from those given, all alike likely."""

    seconds: tuple[float, ...]

    def __init__(self, seconds: Iterable[float]) -> None:
        object.__setattr__(self, "seconds", tuple(float(value) for value in seconds))
        if not self.seconds or not all(0 < value < math.inf for value in self.seconds):
            raise InputError(Fault("durations", "seconds", "must be finite numbers above 0, and at least one of them"))

    @property
    def mean_seconds(self) -> float:
        """The mean of the durations given."""
        return math.fsum(self.seconds) / len(self.seconds)

    def draw(self, pieces: Floats, places: Floats) -> Floats:  # noqa: ARG002
        """Return N durations from N numbers in [0, 1)."""
        return np.array(self.seconds)[(places * len(self.seconds)).astype(np.intp)]


PUBLISHED_DURATIONS = LogUniform(((0.8, 60 * 10**1.5, 60 * 10**3), (0.2, 60 * 10**3, 60 * 10**4)))
"""Those of Gavel's experiments: 60 * 10^U(1.5, 3) s with probability 0.8, otherwise 60 * 10^U(3, 4) s."""
