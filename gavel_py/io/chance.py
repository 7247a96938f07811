"""Random numbers that go on where they were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["generator_from", "generator_state"]


def generator_state(chance: np.random.Generator) -> dict[str, Any]:
    """Return where a generator is, as plain data."""
    return dict(chance.bit_generator.state)


def generator_from(state: Mapping[str, Any]) -> np.random.Generator:
    """Return a generator that goes on from there."""
    chance = np.random.default_rng(0)
    chance.bit_generator.state = state
    return chance
