"""Products of arrays within a solve run on one thread, and the threads are given back when the last solve has ended."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import cast

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import gavel_py as gp
from gavel_py.io.locking import one_blas_thread
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.max_min_fairness import MaxMinFairness
from gavel_py.problem.arrays import Floats

TWO = {2}


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    with threadpool_limits(2, user_api="blas"):
        if blas_threads() != TWO:
            pytest.skip("this BLAS has one thread at most")
        yield


def test_the_threads_come_back_when_the_last_call_ends() -> None:
    both_in, one_out = Barrier(2), Barrier(2)

    def shorter() -> None:
        with one_blas_thread():
            both_in.wait(10)
        one_out.wait(10)

    with ThreadPoolExecutor(1) as threads:
        with one_blas_thread():
            other = threads.submit(shorter)
            both_in.wait(10)
            one_out.wait(10)
            with one_blas_thread():
                pass
            assert blas_threads() == {1}
        other.result(10)
    assert blas_threads() == TWO


def test_an_error_gives_the_threads_back() -> None:
    @one_blas_thread()
    def wrong() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        wrong()
    assert blas_threads() == TWO


def test_a_solve_runs_on_one_thread() -> None:
    seen: list[set[int]] = []

    class Watching(MaxMinFairness):
        def need(self, jobs: JobClasses, level: float) -> Floats:
            seen.append(blas_threads())
            return cast(Floats, np.asarray(super().need(jobs, level)))

    gp.solve(gp.AllocationProblem.from_arrays([[4.0, 1.0], [2.0, 1.0]], [1, 1]), Watching())
    assert seen
    assert all(threads == {1} for threads in seen)
    assert blas_threads() == TWO
