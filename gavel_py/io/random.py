"""Random number generators: checked seeds, and their state as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np
from numpy.random import SeedSequence

from gavel_py.errors import Fault, InputError


def generator_state(chance: np.random.Generator) -> dict[str, Any]:
    """Return the state of a generator as plain data."""
    return dict(chance.bit_generator.state)


def generator_from(state: Mapping[str, Any]) -> np.random.Generator:
    """Return a generator that continues from the state that `generator_state` returned."""
    chance = np.random.default_rng(0)
    chance.bit_generator.state = state
    return chance


def seed_sequence(seed: int) -> SeedSequence:
    """Return the seed sequence of a seed; raises `InputError` unless the seed is a whole number of at least 0."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or int(seed) < 0:
        raise InputError(Fault("random numbers", "seed", f"must be a whole number of at least 0, found {seed!r}"))
    return SeedSequence(int(seed))
