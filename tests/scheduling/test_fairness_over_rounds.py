"""Over many rounds, what jobs receive tends to their fractions; deficits stay bounded even when nothing is left over."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import gavel_py as gp
from tests.scheduling.support import play
from tests.support.examples import examples

Floats = NDArray[np.float64]

# Urgency alone, at 3 rounds, turns any hysteresis around; one round more is what the rounding of fractions to rounds takes.
MOST_OWED = 4.0


def mixture(rng: np.random.Generator, sizes: NDArray[np.int64], capacities: NDArray[np.int64], packings: int) -> Floats:
    """Fractions that can be delivered exactly: a random mixture of packings, each maximal with whole gangs."""
    fractions = np.zeros((len(sizes), len(capacities)))
    for weight in rng.dirichlet(np.full(packings, rng.choice([0.3, 1.0, 5.0]))):
        free = capacities.copy()
        for i in rng.permutation(len(sizes)):
            fitting = [j for j in rng.permutation(len(capacities)) if sizes[i] <= free[j]]
            if fitting:
                fractions[i, fitting[0]] += weight
                free[fitting[0]] -= sizes[i]
    return fractions


@settings(max_examples=examples(20, costly=True))
@given(seed=st.integers(0, 2**32 - 1), backfill=st.booleans())
@example(seed=18988, backfill=True)  # one job lacks up to 2 rounds on each of three types, and has 4.2 too many on the fourth
def test_single_gpu_jobs_that_use_every_gpu_all_of_the_time(seed: int, backfill: bool) -> None:
    """Rows sum to 1 and columns to the capacities, as in a doubly stochastic matrix: no slip can be made good in idle time."""
    rng = np.random.default_rng(seed)
    capacities = rng.integers(1, 5, size=rng.integers(1, 5))
    sizes = np.ones(capacities.sum(), dtype=np.int64)
    fractions = mixture(rng, sizes, capacities, int(rng.integers(1, 12)))
    assert np.allclose(fractions.sum(axis=1), 1)
    assert np.allclose(fractions.sum(axis=0), capacities)
    played = play(250, fractions, capacities.tolist(), backfill=backfill, throughputs=rng.uniform(0.5, 2, size=fractions.shape))
    assert played.deficits.max() <= MOST_OWED
    # What a job has too much on one type, it lacks on all others together, so only what it lacks has this bound.
    assert (fractions - played.share).max() <= MOST_OWED / 250


@pytest.mark.parametrize("seed", range(24))
def test_without_hysteresis_deficits_of_single_gpu_jobs_stay_below_a_round(seed: int) -> None:
    """Fractions that can be delivered exactly, of as many jobs as GPUs or twice as many. A bound of 1 is not proven."""
    rng = np.random.default_rng(seed)
    capacities = rng.integers(1, 5, size=rng.integers(1, 5))
    sizes = np.ones((1 + seed % 2) * capacities.sum(), dtype=np.int64)
    fractions = mixture(rng, sizes, capacities, int(rng.integers(2, 12)))
    by_deadline = partial(gp.scheduling.choose_jobs, hysteresis_rounds=0.0, urgent_rounds=1.0)
    assert play(150, fractions, capacities.tolist(), mechanism=by_deadline).deficits.max() <= 1 + 1e-9


@settings(max_examples=examples(15, costly=True))
@given(seed=st.integers(0, 2**32 - 1))
def test_single_gpu_jobs_in_competition_for_too_few_gpus(seed: int) -> None:
    rng = np.random.default_rng(seed)
    capacities = rng.integers(1, 5, size=rng.integers(1, 5))
    fractions = mixture(rng, np.ones(2 * capacities.sum(), dtype=np.int64), capacities, int(rng.integers(2, 12)))
    played = play(250, fractions, capacities.tolist())
    assert (fractions - played.share).max() <= MOST_OWED / 250


@settings(max_examples=examples(15, costly=True))
@given(seed=st.integers(0, 2**32 - 1))
def test_gangs_of_all_sizes_that_can_be_packed(seed: int) -> None:
    """Mixed gangs make each round a packing problem that is not solved exactly: 4 % of the GPU time at most stays undelivered."""
    rng = np.random.default_rng(seed)
    capacities = rng.integers(4, 17, size=rng.integers(1, 4))
    sizes = np.minimum(rng.choice([1, 1, 2, 4, 8], size=rng.integers(4, 14)), capacities.max())
    fractions = mixture(rng, sizes, capacities, int(rng.integers(2, 9)))
    played = play(250, fractions, capacities.tolist(), num_gpus=sizes)
    short = sizes @ np.maximum(0, fractions - played.share)
    assert short.sum() <= 0.04 * (sizes @ fractions).sum()
