"""Random numbers from a seed."""

from __future__ import annotations

from numbers import Integral

from numpy.random import SeedSequence

from gavel_py.errors import Fault, InputError

__all__ = ["sequence_of"]


def sequence_of(seed: int) -> SeedSequence:
    """Return what generators of random numbers start from; raises `InputError` for what is no whole number of at least 0."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or int(seed) < 0:
        raise InputError(Fault("random numbers", "seed", f"must be a whole number, at least 0, found {seed!r}"))
    return SeedSequence(int(seed))
